/**
 * The exercises in their order, and their arithmetic.
 *
 * @import { Edit, Numbers } from "../../engine/engine.js"
 * @import { Exercise, Lab, Revealed, Step } from "./player.js"
 */

import { rounded } from "./player.js";

/** @param {ArrayLike<number>} one @param {ArrayLike<number>} other */
function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i += 1) sum += one[i] * other[i];
  return sum;
}

/** @param {ArrayLike<number>} scores */
function softmax(scores) {
  const all = Array.from(scores);
  const largest = all.reduce((one, other) => Math.max(one, other), -Infinity);
  const powers = all.map((score) => Math.exp(score - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

/** @param {ArrayLike<number>} values */
function mean(values) {
  return Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * Kullback-Leibler divergence of two rows of logits, in nats.
 *
 * @param {ArrayLike<number>} clean
 * @param {ArrayLike<number>} changed
 */
function divergence(clean, changed) {
  const [one, other] = [softmax(clean), softmax(changed)];
  return one.reduce((sum, p, i) => (p > 0 ? sum + p * Math.log(p / other[i]) : sum), 0);
}

/**
 * The mean weight of a head on the token `step` further, over the queries that have one.
 *
 * @param {Numbers} probs  of a layer
 * @param {number} head
 * @param {number} step
 */
function meanWeight({ shape: [, n], values }, head, step) {
  const found = [];
  for (let query = Math.max(0, -step); query < n - Math.max(0, step); query += 1) found.push(values[(head * n + query) * n + query + step]);
  return mean(found);
}

/**
 * Lists of different words, by the generator of Park and Miller from seed 1.
 *
 * @param {string[]} words
 * @param {number} count
 * @param {number} length
 */
function draws(words, count, length) {
  let state = 1;
  return Array.from({ length: count }, () => {
    /** @type {string[]} */
    const drawn = [];
    while (drawn.length < length) {
      state = (state * 48271) % 2147483647;
      const word = words[state % words.length];
      if (!drawn.includes(word)) drawn.push(word);
    }
    return drawn;
  });
}

/**
 * A step whose guess is a number.
 *
 * @param {string} name  of the number
 * @param {[number, number]} between  the smallest and the largest guess
 * @param {number | ((answer: number) => number)} off  how far off is still right
 * @param {string | Step["ask"]} ask
 * @param {(lab: Lab) => Promise<Omit<Revealed, "numbers"> & {answer: number, numbers?: Record<string, number>}>} reveal
 * @returns {Step}
 */
function number(name, between, off, ask, reveal) {
  return {
    ask: typeof ask === "string" ? () => ask : ask,
    between,
    tolerance: typeof off === "number" ? () => off : off,
    async reveal(lab) {
      const { answer, numbers, ...told } = await reveal(lab);
      return { answer, numbers: { [name]: answer, ...numbers }, ...told };
    },
  };
}

/** A step whose guess is one of some words. @param {string[]} choices @param {string} ask @param {Step["reveal"]} reveal @returns {Step} */
function choice(choices, ask, reveal) {
  return { ask: () => ask, choices, reveal };
}

/** @param {string} title @param {Exercise["model"]} model @param {string} about @param {Step[]} steps @returns {Exercise} */
function exercise(title, model, about, steps) {
  return { title, minutes: 10, model, about, steps };
}

/** @type {[number, number]} */
const SHARE = [0, 1];
const RAN_AWAY = "the horse quickly ran away";
const TIRED = "the horses [MASK] very tired.";
const [LAYER, HEAD] = [0, 2];

/** @param {Lab} lab */
async function given(lab) {
  const run = await lab.run(RAN_AWAY);
  const [query, key] = [run.place("horse"), run.place("quickly")];
  const product = dot(await run.row("query", LAYER, HEAD, query), await run.row("key", LAYER, HEAD, key));
  const scores = await run.row("scores", LAYER, HEAD, query);
  const probs = await run.row("probs", LAYER, HEAD, query);
  return { run, query, key, product, scores, probs, scale: Math.sqrt(lab.about.dHead) };
}

/** The row of a query in the picture. @param {number} query @param {Edit[]} [edits] */
const shownRow = (query, edits = []) => ({ text: RAN_AWAY, edits, view: { layer: LAYER, head: HEAD, query } });

const oneWeight = exercise("One weight by hand", "tiny-bert", "From a dot product to one weight: the scale and the softmax. A calculator helps.", [
  number("score", [-Infinity, Infinity], (answer) => Math.abs(answer) * 0.01, async (lab) => {
    const { product } = await given(lab);
    const { dHead } = lab.about;
    return `“${RAN_AWAY}”, head ${LAYER}-${HEAD}: the query of “horse” times the key of “quickly”, summed over ${dHead} dimensions, is ${rounded(product)}. The score is that divided by √${dHead}. What is the score?`;
  }, async (lab) => {
    const { product, query, scores, key, scale } = await given(lab);
    return {
      answer: scores[key],
      numbers: { dot: product },
      said: `${rounded(product)} · ${rounded(1 / scale)} = ${rounded(scores[key])}.`,
      means: "The scale keeps scores from growing with the number of dimensions.",
      show: shownRow(query),
    };
  }),
  number("weight", SHARE, 0.02, async (lab) => {
    const { run, scores, key } = await given(lab);
    const others = run.words.flatMap((word, i) => (i === key ? [] : [`${word} ${rounded(scores[i])}`]));
    return `“quickly” has the score ${rounded(scores[key])}, the others: ${others.join(", ")}. The softmax is exp(score) divided by the sum of exp of all scores. Which weight, 0 to 1, does “horse” give “quickly”?`;
  }, async (lab) => {
    const { query, key, probs } = await given(lab);
    const means = "A score that lies a few units above the others takes nearly all the weight.";
    return { answer: probs[key], said: `The weight is ${rounded(probs[key])}.`, means, show: shownRow(query) };
  }),
  number("unscaled", SHARE, 0.01, (lab) => `Now without the scale: every score of “horse” is √${lab.about.dHead} times as large. Which weight does “quickly” get?`, async (lab) => {
    const { query, key, scores, scale } = await given(lab);
    const large = Array.from(scores, (score) => score * scale);
    const weight = softmax(large)[key];
    // Each score of the one query as it would be; the edits know no factor.
    const edits = large.map((value, at) => /** @type {const} */ ({ quantity: "scores", change: "set", layer: LAYER, head: HEAD, position: query, key: at, value }));
    const means = "Without the scale the softmax picks one token and forgets the rest.";
    return { answer: weight, said: `The weight becomes ${rounded(weight)}.`, means, show: shownRow(query, edits) };
  }),
  number("equal", SHARE, 0.005, async (lab) => `And with all scores of “horse” set to 0? The text has ${(await lab.run(RAN_AWAY)).length} tokens, [CLS] and [SEP] among them. Which weight does “quickly” get?`, async (lab) => {
    const { query, key } = await given(lab);
    /** @type {Edit[]} */
    const edits = [{ quantity: "scores", change: "zero", layer: LAYER, head: HEAD, position: query }];
    const weight = (await (await lab.run(RAN_AWAY, edits)).row("probs", LAYER, HEAD, query))[key];
    const means = "Equal scores make attention a plain mean of all values.";
    return { answer: weight, said: `${rounded(weight)}: one part for each token.`, means, show: shownRow(query, edits) };
  }),
  choice(["are", "were", "was", "is"], `“${TIRED}” with all scores of every head set to 0, so that each head takes a plain mean. Which word does the model put first: are, were, was or is?`, async (lab) => {
    /** @type {Edit[]} */
    const edits = [{ quantity: "scores", change: "zero" }];
    const [was] = await lab.ids("was");
    const before = await lab.run(TIRED);
    const place = before.place("[MASK]");
    const clean = softmax(await before.logits(place))[was];
    const run = await lab.run(TIRED, edits);
    const first = await run.first(place);
    const prob = softmax(await run.logits(place))[was];
    return {
      answer: first,
      numbers: { "was before": clean, was: prob, top: Number(first === "was") },
      said: `The model says “${first}” first; “was” goes from ${rounded(clean)} to ${rounded(prob)}.`,
      means: "Without attention the mask no longer knows its subject, and the commonest form wins.",
      show: { text: TIRED, edits },
    };
  }),
]);

const HAPPY = "the small horse ran into the old house and the children were happy";
const DRAWN = "water green under king seven door often child horse red about stone not";
/** Heads of layer 0. */
const [PREVIOUS, NEXT] = [1, 2];

/**
 * The scores of a head of layer 0, were other position embeddings added to its words.
 *
 * @param {Lab} lab
 * @param {number} head
 * @param {(position: number, length: number) => number} placed
 */
async function scoresOf(lab, head, placed) {
  const { run } = await lab.run(HAPPY);
  const { dModel, dHead, built } = lab.about;
  const names = ["word.weight", "position.weight", "segment.weight", "embed_norm.weight", "embed_norm.bias"];
  const [word, position, segment, scale, shift] = await Promise.all(names.map(async (name) => (await lab.weight(`body.${name}`)).values));
  const inputs = run.ids.map((id, i) => {
    const at = placed(i, run.ids.length);
    const sum = Array.from({ length: dModel }, (_, d) => word[id * dModel + d] + position[at * dModel + d] + segment[d]);
    const centre = mean(sum);
    const deviation = Math.sqrt(mean(sum.map((value) => (value - centre) ** 2)) + built.eps);
    return sum.map((value, d) => ((value - centre) / deviation) * scale[d] + shift[d]);
  });
  /** @param {string} name */
  const projected = async (name) => {
    const { values } = await lab.weight(`body.groups.0.attention.${name}.weight`);
    const bias = (await lab.weight(`body.groups.0.attention.${name}.bias`)).values;
    const rows = Array.from({ length: dHead }, (_, d) => head * dHead + d);
    return inputs.map((input) => rows.map((row) => dot(values.subarray(row * dModel, (row + 1) * dModel), input) + bias[row]));
  };
  const [queries, keys] = [await projected("query"), await projected("key")];
  return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(dHead)));
}

/** @param {number[][]} scores @param {number} head @returns {Edit[]} */
function editsOf(scores, head) {
  return scores.flatMap((row, position) => row.map((value, key) => ({ quantity: "scores", change: /** @type {const} */ ("set"), layer: 0, head, position, key, value })));
}

/**
 * @param {Lab} lab
 * @param {string} text
 * @param {number} head
 * @param {number} step
 * @param {Edit[]} [edits]
 */
async function weightOf(lab, text, head, step, edits = []) {
  return meanWeight(await (await lab.run(text, edits)).read("probs", 0), head, step);
}

const PREVIOUS_SHOWN = { layer: 0, head: PREVIOUS };
const wordOrder = exercise("Where word order lives", "tiny-bert", "Two heads look at a neighbour. Is it the words that tell them which, or the positions?", [
  number("previous words", SHARE, 0.1, `“${HAPPY}”: head 0-1 looks at the previous token. Which weight, 0 to 1, does a token give the one before it, on average?`, async (lab) => {
    const [previous, next] = [await weightOf(lab, HAPPY, PREVIOUS, -1), await weightOf(lab, HAPPY, NEXT, 1)];
    const said = `${rounded(previous)}. Head 0-2 gives the next token ${rounded(next)}.`;
    return { answer: previous, numbers: { "next words": next }, said, means: "Both heads do one thing nearly all the time.", show: { text: HAPPY, view: PREVIOUS_SHOWN } };
  }),
  number("previous drawn", SHARE, 0.1, `The words are taken at random: “${DRAWN}”. Which weight does head 0-1 give the previous token now?`, async (lab) => {
    const [previous, next] = [await weightOf(lab, DRAWN, PREVIOUS, -1), await weightOf(lab, DRAWN, NEXT, 1)];
    const said = `${rounded(previous)}, and head 0-2 gives the next token ${rounded(next)}.`;
    return { answer: previous, numbers: { "next drawn": next }, said, means: "Which words stand there hardly matters, so it must be the positions.", show: { text: DRAWN, view: PREVIOUS_SHOWN } };
  }),
  number("previous equal", SHARE, 0.1, "The first text again, but each word gets the position embedding of position 0. Which weight does head 0-1 give the previous token?", async (lab) => {
    const edits = editsOf(await scoresOf(lab, PREVIOUS, () => 0), PREVIOUS);
    const previous = await weightOf(lab, HAPPY, PREVIOUS, -1, edits);
    const next = await weightOf(lab, HAPPY, NEXT, 1, editsOf(await scoresOf(lab, NEXT, () => 0), NEXT));
    return {
      answer: previous,
      numbers: { "next equal": next },
      said: `${rounded(previous)}; head 0-2 gives the next token ${rounded(next)}. The picture changes head 0-1 alone.`,
      means: "Without positions the heads no longer know which token is the neighbour.",
      show: { text: HAPPY, edits, view: PREVIOUS_SHOWN },
    };
  }),
  choice(["the previous token", "the next token", "[SEP]"], "Now the position embeddings run backwards: the last token gets the first. Where does head 0-1 look?", async (lab) => {
    const edits = editsOf(await scoresOf(lab, PREVIOUS, (at, length) => length - 1 - at), PREVIOUS);
    const [previous, next] = [await weightOf(lab, HAPPY, PREVIOUS, -1, edits), await weightOf(lab, HAPPY, PREVIOUS, 1, edits)];
    return {
      answer: next > previous ? "the next token" : "the previous token",
      numbers: { "next reversed": next },
      said: `It gives the next token ${rounded(next)} and the previous one ${rounded(previous)}.`,
      means: "“Previous” means one position lower, and nothing else. The word order of this head comes from the position embeddings.",
      show: { text: HAPPY, edits, view: PREVIOUS_SHOWN },
    };
  }),
]);

const NOUNS = [["boy", "boys"], ["girl", "girls"], ["horse", "horses"], ["man", "men"], ["bird", "birds"], ["friend", "friends"], ["child", "children"], ["tree", "trees"], ["house", "houses"], ["woman", "women"]];
const ENDINGS = ["very tired.", "very happy.", "in the garden.", "very old.", "not there.", "near the river."];
const BOYS = "The boys [MASK] very tired.";
const FAR = "the men who saw the horse [MASK] very tired.";
/** @type {Edit} */
const SUBJECT = { quantity: "scores", change: "hide", key: 2 };

/** @param {number} layer @param {number} head @returns {Edit} */
const off = (layer, head) => ({ quantity: "z", change: "zero", layer, head });

/**
 * The probabilities of was and were at the mask.
 *
 * @param {Lab} lab
 * @param {number[]} ids
 * @param {string} text
 * @param {Edit[]} [edits]
 */
async function wasWere(lab, [was, were], text, edits = []) {
  const run = await lab.run(text, edits);
  const probs = softmax(await run.logits(run.place("[MASK]")));
  return { was: probs[was], were: probs[were] };
}

/** @param {string[]} endings */
const pairsOf = (endings) => NOUNS.flatMap(([one, many]) => endings.map((end) => [`The ${one} [MASK] ${end}`, `The ${many} [MASK] ${end}`]));

/**
 * The plurals of the pairs of which the model has both forms right.
 *
 * @param {Lab} lab
 * @param {number[]} ids
 * @param {string[]} endings
 */
async function rightOnes(lab, ids, endings) {
  const right = [];
  for (const [one, many] of pairsOf(endings)) {
    const [single, plural] = [await wasWere(lab, ids, one), await wasWere(lab, ids, many)];
    if (single.was >= single.were && plural.were > plural.was) right.push(many);
  }
  return right;
}

/**
 * How many of the texts have was before were, with the edits.
 *
 * @param {Lab} lab
 * @param {number[]} ids
 * @param {string[]} texts
 * @param {Edit[]} edits
 */
async function flips(lab, ids, texts, edits) {
  let count = 0;
  for (const text of texts) {
    const { was, were } = await wasWere(lab, ids, text, edits);
    count += Number(was >= were);
  }
  return count;
}

const COUNTED = pairsOf(ENDINGS).length;
const agreement = exercise("was or were", "tiny-bert", "A verb agrees with its subject. Which part of the model carries the number of the subject to the mask?", [
  number("right", [0, COUNTED], 6, `${COUNTED} pairs such as “The boy [MASK] very tired.” and “The boys [MASK] very tired.”: in how many does the model prefer was for the one and were for the many?`, async (lab) => {
    const right = (await rightOnes(lab, await lab.ids("was were"), ENDINGS)).length;
    return { answer: right, said: `${right} of ${COUNTED}.`, means: "The model agrees with a subject that stands right before the mask.", show: { text: BOYS } };
  }),
  number("hidden", [0, COUNTED], 6, `“${BOYS}”: the subject is hidden from all tokens. In how many of the plurals that were right does was come before were now?`, async (lab) => {
    const ids = await lab.ids("was were");
    const right = await rightOnes(lab, ids, ENDINGS);
    const hidden = await flips(lab, ids, right, [SUBJECT]);
    const means = "All that the mask knows of the number comes from the subject; without it, it says was.";
    return { answer: hidden, said: `${hidden} of ${right.length}.`, means, show: { text: BOYS, edits: [SUBJECT] } };
  }),
  choice(Array.from({ length: 16 }, (_, i) => `${Math.floor(i / 4)}-${i % 4}`), "One head alone is set to zero. Which one makes the plural flip in nearly all of these sentences?", async (lab) => {
    const ids = await lab.ids("was were");
    const right = await rightOnes(lab, ids, ENDINGS.slice(0, 1));
    /** @type {Record<string, number>} */
    const numbers = {};
    for (let layer = 0; layer < lab.about.layers; layer += 1) {
      for (let head = 0; head < lab.about.heads; head += 1) numbers[`${layer}-${head}`] = await flips(lab, ids, right, [off(layer, head)]);
    }
    const [[first, most], [, next]] = Object.entries(numbers).sort(([, one], [, other]) => other - one);
    const [layer, head] = first.split("-").map(Number);
    return {
      answer: first,
      numbers,
      said: `Head ${first} flips ${most} of ${right.length}; no other flips more than ${next}.`,
      means: "Head 0-1 looks at the previous token, here the subject. No other head alone makes one plural flip.",
      show: { text: BOYS, edits: [off(layer, head)], view: { layer, head } },
    };
  }),
  choice(["was", "were"], `“${FAR}”: the men were, the horse was. Which of the two does the model prefer?`, async (lab) => {
    const numbers = await wasWere(lab, await lab.ids("was were"), FAR);
    return {
      answer: numbers.was > numbers.were ? "was" : "were",
      numbers,
      said: `was ${rounded(numbers.was)}, were ${rounded(numbers.were)}.`,
      means: "The model agrees with its neighbour, not with its subject: the pairs, where both are one, could not show it.",
      show: { text: FAR, view: { layer: 0, head: 1 } },
    };
  }),
]);

const LATE = [2, 3];
const EARLY = [0, 1];

/** @param {number[]} layers @returns {Edit[]} */
const layersOff = (layers) => layers.map((layer) => ({ quantity: "z", change: "zero", layer }));

/** The mean weight on [SEP] of all heads and queries of the late layers. @param {Lab} lab */
async function resting(lab) {
  const run = await lab.run(BOYS);
  const found = [];
  for (const layer of LATE) {
    const { shape: [, , n], values } = await run.read("probs", layer);
    found.push(mean(values.filter((_, i) => i % n === n - 1)));
  }
  return mean(found);
}

/** The mean lengths of the values at [SEP] and between [CLS] and [SEP]. @param {Lab} lab */
async function lengths(lab) {
  const run = await lab.run(BOYS);
  /** @type {{sep: number[], others: number[]}} */
  const found = { sep: [], others: [] };
  for (const layer of LATE) {
    const { shape: [heads, n, width], values } = await run.read("value", layer);
    for (let at = 0; at < heads * n; at += 1) {
      const vector = values.subarray(at * width, (at + 1) * width);
      const length = Math.sqrt(dot(vector, vector));
      if (at % n === n - 1) found.sep.push(length);
      else if (at % n) found.others.push(length);
    }
  }
  return { sep: mean(found.sep), others: mean(found.others) };
}

/**
 * How far the prediction moves with the attention of whole layers off, in nats.
 *
 * @param {Lab} lab
 * @param {number[]} layers
 */
async function moved(lab, layers) {
  const before = await lab.run(BOYS);
  const place = before.place("[MASK]");
  const clean = await before.logits(place);
  return divergence(clean, await (await lab.run(BOYS, layersOff(layers))).logits(place));
}

const RESTING = { text: BOYS, view: { layer: 2, head: 0 } };
const notUse = exercise("Attention is not use", "tiny-bert", "Heads can look at a token and take nothing from it.", [
  number("weight", SHARE, 0.1, `“${BOYS}”: which part of their weight, 0 to 1, do the eight heads of layers 2 and 3 give [SEP], on average?`, async (lab) => {
    const weight = await resting(lab);
    return { answer: weight, said: `${rounded(weight)} of the weight.`, means: "They look at a token without meaning nearly all the time. What do they take from there?", show: RESTING };
  }),
  number("value sep", [0, 10], 0.3, async (lab) => `A head takes the value vectors, times the weights. Between [CLS] and [SEP] the values of these heads are ${rounded((await lengths(lab)).others)} long on average. How long are those at [SEP]?`, async (lab) => {
    const { sep, others } = await lengths(lab);
    const means = "The values there are short. But these heads take little from other tokens as well: most of the little that they add is from [SEP].";
    return { answer: sep, numbers: { "value others": others }, said: `${rounded(sep)} against ${rounded(others)}.`, means, show: RESTING };
  }),
  number("late off", [0, 20], 0.1, "Layers 2 and 3 lose all attention: eight of sixteen heads are set to zero. How far does the prediction move? (Kullback-Leibler divergence in nats: 0 the same, above 1 another prediction)", async (lab) => {
    const late = await moved(lab, LATE);
    const means = "Nearly nothing. But layer 1, which does not rest, moves it by 0.05 only: being late may be the reason as well as resting.";
    return { answer: late, said: `By ${rounded(late)} nats.`, means, show: { text: BOYS, edits: layersOff(LATE) } };
  }),
  choice(["less than 0.1 nats", "0.1 to 1 nat", "more than 1 nat"], "And with layers 0 and 1 off instead?", async (lab) => {
    const early = await moved(lab, EARLY);
    const answer = early < 0.1 ? "less than 0.1 nats" : early <= 1 ? "0.1 to 1 nat" : "more than 1 nat";
    const means = "Half of the heads do the work. A large weight alone did not tell which half.";
    return { answer, numbers: { "early off": early }, said: `By ${rounded(early)} nats.`, means, show: { text: BOYS, edits: layersOff(EARLY) } };
  }),
]);

const WORDS = "red horse blue door green tree book water stone house child king fire road boat bird star ship hand wall".split(" ");
const COUNT = 100;
/** @type {Edit[]} */
const OFF = [0, 2, 3].map((head) => ({ quantity: "z", change: "zero", layer: 1, head }));

/** @param {string[]} words @param {number} again */
const textOf = (words, again) => [...words, ...words.slice(0, again)].join(" ");
const SHOWN = textOf(draws(WORDS, 1, 7)[0], 3);

/**
 * A step: of how many drawn lists the next word is the one that followed before.
 *
 * @param {string} name  of the number: which part of all lists
 * @param {[number, number]} lengths  words, and how many of them are repeated
 * @param {string} ask
 * @param {string} means
 * @param {Edit[]} [edits]
 */
function copyStep(name, [length, again], ask, means, edits = []) {
  return number(name, [0, COUNT], 10, ask, async (lab) => {
    let right = 0;
    for (const words of draws(WORDS, COUNT, length)) {
      const run = await lab.run(textOf(words, again), edits);
      right += Number((await run.first(run.length - 1)) === words[again]);
    }
    const show = { text: textOf(draws(WORDS, 1, length)[0], again), ...(edits.length > 0 && { edits, view: { layer: 1, head: 0 } }) };
    return { answer: right, numbers: { [name]: right / COUNT }, said: `In ${right} of ${COUNT}.`, means, show };
  });
}

const copying = exercise("Copying", "tiny-gpt2", "A model reads words in no order, then the first of them again. Can it go on, and with what?", [
  copyStep("all", [7, 3], `Seven words, three of them again: “${SHOWN}”. Of ${COUNT} such lists, in how many is the next word the one that followed before?`,
    "It copies, although the order of the words means nothing. It was trained to: a quarter of what it read were random tokens that come twice."),
  copyStep("short", [3, 2], `Three words, two of them again, as “${textOf(draws(WORDS, 1, 3)[0], 2)}”. In how many of ${COUNT}?`,
    "With so few words it often takes another guess. Ask for five words or more."),
  copyStep("without", [7, 3], `Seven words again, with heads 1-0, 1-2 and 1-3 set to zero. In how many of ${COUNT}?`,
    "Without these three induction heads nothing is copied. The same is true without head 0-1 alone, or 0-3: needed does not mean that it does the work.", OFF),
]);

const LARGEST = 4;

/**
 * Of each query, query times key dimension by dimension, at the key with the largest weight.
 *
 * @param {Lab} lab
 * @param {number} layer
 * @param {number} head
 */
async function productsOf(lab, layer, head) {
  const run = await lab.run(HAPPY);
  const products = [];
  for (let query = 0; query < run.length; query += 1) {
    const probs = await run.row("probs", layer, head, query);
    const key = probs.indexOf(Math.max(...probs));
    const looked = await run.row("key", layer, head, key);
    products.push(Array.from(await run.row("query", layer, head, query), (value, i) => value * looked[i]));
  }
  return products;
}

/** The part of the four largest dimensions that two queries share, over all pairs. @param {number[][]} products */
function sharedOf(products) {
  const largest = products.map((row) => row.map((_, i) => i).sort((one, other) => row[other] - row[one]).slice(0, LARGEST));
  return mean(largest.flatMap((one, i) => largest.slice(i + 1).map((other) => one.filter((at) => other.includes(at)).length / LARGEST)));
}

/** How many dimensions, the largest first, sum to 80 % of the positive part. @param {number[][]} products */
function dimensionsOf(products) {
  return mean(products.map((row) => {
    const sizes = row.map((value) => Math.max(0, value)).sort((one, other) => other - one);
    const all = sizes.reduce((sum, size) => sum + size, 0);
    let sum = 0;
    return sizes.findIndex((size) => (sum += size) >= 0.8 * all) + 1;
  }));
}

/** @param {number} layer @param {number} head */
const seen = (layer, head) => ({ text: HAPPY, view: { view: "neuron", layer, head, query: 3 } });

const neurons = exercise("Vig's neurons", "tiny-bert", "Jesse Vig saw heads whose attention a few dimensions decide, the same ones for every token. Is it so here?", [
  number("2-0 shared", SHARE, 0.15, `Head 2-0 looks at [SEP]. Take the ${LARGEST} dimensions with the largest query times key, for each token of a text. Which part of them, 0 to 1, do two tokens share on average? By chance it would be ${LARGEST} of 32, 0.125.`, async (lab) => {
    const shared = sharedOf(await productsOf(lab, 2, 0));
    return { answer: shared, said: `${rounded(shared)} of them.`, means: "Mostly the same dimensions, whatever the token: the head looks for [SEP] whoever asks.", show: seen(2, 0) };
  }),
  number("0-1 shared", SHARE, 0.1, "Head 0-1 looks at the previous token. Which part do two tokens share there?", async (lab) => {
    const [previous, next] = [sharedOf(await productsOf(lab, 0, 1)), sharedOf(await productsOf(lab, 0, 2))];
    const said = `${rounded(previous)}; head 0-2, which looks at the next token, ${rounded(next)}.`;
    return { answer: previous, numbers: { "0-2 shared": next }, said, means: "Little more than chance: each position has dimensions of its own.", show: seen(0, 1) };
  }),
  number("2-0 dimensions", [1, 32], 3, "How many of 32 dimensions, the largest first, make up 80 % of the positive products in head 2-0, on average?", async (lab) => {
    const [delimiter, next] = [dimensionsOf(await productsOf(lab, 2, 0)), dimensionsOf(await productsOf(lab, 0, 2))];
    const means = "The same dimensions, but many of them: “a few neurons” does not hold for this head.";
    return { answer: delimiter, numbers: { "0-2 dimensions": next }, said: `${rounded(delimiter)}, against ${rounded(next)} in head 0-2.`, means, show: seen(2, 0) };
  }),
]);

export const EXERCISES = [oneWeight, wordOrder, agreement, notUse, copying, neurons];
