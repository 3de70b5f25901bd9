"""Pairs of sentences to see the heads of a model by, where nobody names a corpus."""

# Every pair repeats words within a sentence and between the two, and has rare words in pieces.
SAMPLE_PAIRS = (
    ("I went to the market to buy strawberries.", "At the market, I also bought fresh figs."),
    ("The rabbit hopped over the wall, and the dog ran after the rabbit.", "The wall was low."),
    ("She read the letter twice.", "The letter was from her sister, who seldom wrote a letter."),
    ("Who opened the window?", "The window was open when we came, said the housekeeper."),
    ("The captain and the crew feared the storm.", "When the storm came, the crew was asleep."),
    ("Bees make honey, and bears like honey.", "Beekeepers therefore watch out for bears."),
    ("The old bridge is closed.", "People cross the river by the new bridge, or by boat."),
    ("My brother plays the violin, and I play the piano.", "We play in the evening."),
    ("It rained all night.", "In the morning the streets were wet, but it rained no more."),
    ("The teacher asked a question.", "Nobody answered the question until the teacher smiled."),
    ("A watchmaker repaired the clock, and the clock ran again.", "It ran for forty years."),
    ("We walked through the forest in autumn.", "The forest was silent, red and gold."),
)
