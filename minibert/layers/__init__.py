"""The layers of the models, in the order of the data, and what they multiply with."""
