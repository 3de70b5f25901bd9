/**
 * The chapters of the story in their order, and their arithmetic.
 *
 * @import { Edit } from "../../engine/engine.js"
 * @import { Chapter, Lab, Revealed, Scene, Step } from "./lab.js"
 */

import { dot, softmax } from "../../core/data/softmax.js";
import { rounded } from "./lab.js";

/** @param {ArrayLike<number>} values */
function mean(values) {
  return Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;
}

/** Kullback-Leibler divergence of two rows of logits, in nats. @param {ArrayLike<number>} clean @param {ArrayLike<number>} changed */
function divergence(clean, changed) {
  const [one, other] = [softmax(clean), softmax(changed)];
  return one.reduce((sum, p, i) => (p > 0 ? sum + p * Math.log(p / other[i]) : sum), 0);
}

/** Lists of different words, by the generator of Park and Miller from seed 1. @param {string[]} words @param {number} count @param {number} length */
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
 * @param {number} tolerance  how far off is still right
 * @param {Scene} scene  before the guess
 * @param {Step["ask"]} ask
 * @param {(lab: Lab) => Promise<Omit<Revealed, "numbers"> & {answer: number, numbers?: Record<string, number>}>} reveal
 * @returns {Step}
 */
function number(name, between, tolerance, scene, ask, reveal) {
  return {
    scene,
    ask,
    between,
    tolerance,
    async reveal(lab) {
      const { answer, numbers, ...told } = await reveal(lab);
      return { answer, numbers: { [name]: answer, ...numbers }, ...told };
    },
  };
}

/** A step whose guess is one of some words. @param {string[]} choices @param {Scene} scene @param {string} ask @param {Step["reveal"]} reveal @returns {Step} */
function choice(choices, scene, ask, reveal) {
  return { scene, ask, choices, reveal };
}

/** @param {string} title @param {Chapter["model"]} model @param {string} about @param {Step[]} steps @returns {Chapter} */
function chapter(title, model, about, steps) {
  return { title, model, about, steps };
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

/** The row of “horse” in the picture. */
const ROW = { text: RAN_AWAY, view: { layer: LAYER, head: HEAD, query: 2 } };

const oneWeight = chapter("One weight by hand", "tiny-bert", "Each head makes two lists of 32 numbers of every token: a query, what it looks for, and a key, what it offers. How is a weight computed from them? A calculator helps.", [
  number("score", [-Infinity, Infinity], 0.01, { text: RAN_AWAY }, async (lab) => {
    const { product } = await given(lab);
    const { dHead } = lab.about;
    return `In head ${LAYER}-${HEAD} the query of “horse” times the key of “quickly”, summed over ${dHead} dimensions, is ${rounded(product)}: divide it by √${dHead}. What is the score?`;
  }, async (lab) => {
    const { product, scores, key, scale } = await given(lab);
    return {
      answer: scores[key],
      numbers: { dot: product },
      said: `${rounded(product)} · ${(1 / scale).toFixed(6)} = ${rounded(scores[key])}.`,
      means: "The division keeps scores from growing with the number of dimensions.",
      show: ROW,
    };
  }),
  number("weight", SHARE, 0.02, { text: RAN_AWAY, view: { ...ROW.view, query: 1 } }, async (lab) => {
    const { run, scores, key } = await given(lab);
    const others = run.words.flatMap((word, i) => (i === key ? [] : [`${word} ${scores[i].toFixed(2)}`]));
    return `“quickly” has the score ${scores[key].toFixed(2)} (the others: ${others.join(", ")}), and its weight is exp(score) divided by the sum of exp of all scores: which weight, 0 to 1, does “horse” give “quickly”?`;
  }, async (lab) => {
    const { key, probs } = await given(lab);
    const means = "A score that lies a few units above the others takes nearly all the weight.";
    return { answer: probs[key], said: `The weight is ${rounded(probs[key])}.`, means, show: ROW };
  }),
  number("unscaled", SHARE, 0.01, ROW, (lab) => `Leave the division out, so that every score of “horse” is √${lab.about.dHead} times as large: which weight does “quickly” get?`, async (lab) => {
    const { query, key, scores, scale } = await given(lab);
    const large = Array.from(scores, (score) => score * scale);
    const weight = softmax(large)[key];
    // Each score of the one query as it would be; the edits know no factor.
    const edits = large.map((value, at) => /** @type {const} */ ({ quantity: "scores", change: "set", layer: LAYER, head: HEAD, position: query, key: at, value }));
    const means = "Without the division the head looks at one token and forgets the rest.";
    return { answer: weight, said: `The weight becomes ${rounded(weight)}.`, means, show: { edits } };
  }),
  number("equal", SHARE, 0.005, ROW, async (lab) => `Set all scores of “horse” to 0, in a text of ${(await lab.run(RAN_AWAY)).length} tokens, [CLS] and [SEP] among them: which weight does “quickly” get?`, async (lab) => {
    const { query, key } = await given(lab);
    /** @type {Edit[]} */
    const edits = [{ quantity: "scores", change: "zero", layer: LAYER, head: HEAD, position: query }];
    const weight = (await (await lab.run(RAN_AWAY, edits)).row("probs", LAYER, HEAD, query))[key];
    const means = "Equal scores make attention a plain mean of all values.";
    return { answer: weight, said: `${rounded(weight)}: one part for each token.`, means, show: { edits } };
  }),
  choice(["are", "were", "was", "is"], { text: TIRED }, `Set all scores of every head to 0, so that each head takes a plain mean: which word does the model choose for “${TIRED}”?`, async (lab) => {
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
      said: `The model chooses “${first}”; “was” goes from ${rounded(clean)} to ${rounded(prob)}.`,
      means: "Without attention the gap no longer knows its subject, and the commonest form wins.",
      show: { edits },
    };
  }),
]);

const HAPPY = "the small horse ran into the old house and the children were happy";
const DRAWN = "water green under king seven door often child horse red about stone not";
/** Heads of layer 0. */
const [PREVIOUS, NEXT] = [1, 2];

/** The scores of a head of layer 0, were other position embeddings added to its words. @param {Lab} lab @param {number} head @param {(position: number, length: number) => number} placed */
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

/** The mean weight of a head of layer 0 on the token `step` further, over the queries that have one. @param {Lab} lab @param {string} text @param {number} head @param {number} step @param {Edit[]} [edits] */
async function weightOf(lab, text, head, step, edits = []) {
  const { shape: [, n], values } = await (await lab.run(text, edits)).read("probs", 0);
  const queries = Array.from({ length: n - Math.abs(step) }, (_, i) => i + Math.max(0, -step));
  return mean(queries.map((query) => values[(head * n + query) * n + query + step]));
}

const PREVIOUS_SHOWN = { text: HAPPY, view: { layer: 0, head: PREVIOUS } };
const wordOrder = chapter("Where word order lives", "tiny-bert", "That head looks at the word before. A token enters as the sum of two lists of numbers, embeddings: one of its word and one of its position. From which of them does the head know which word comes before?", [
  number("previous words", SHARE, 0.05, { text: HAPPY }, `In “${HAPPY}”, what weight, 0 to 1, does head 0-1 give the token before, on average?`, async (lab) => {
    const [previous, next] = [await weightOf(lab, HAPPY, PREVIOUS, -1), await weightOf(lab, HAPPY, NEXT, 1)];
    const said = `${rounded(previous)}; head 0-2 gives the token after ${rounded(next)}.`;
    return { answer: previous, numbers: { "next words": next }, said, means: "Both heads do only one thing, nearly all the time.", show: PREVIOUS_SHOWN };
  }),
  number("previous drawn", SHARE, 0.05, PREVIOUS_SHOWN, `Take words at random, “${DRAWN}”: what weight does head 0-1 give the token before now?`, async (lab) => {
    const [previous, next] = [await weightOf(lab, DRAWN, PREVIOUS, -1), await weightOf(lab, DRAWN, NEXT, 1)];
    const said = `${rounded(previous)}; head 0-2 gives the token after ${rounded(next)}.`;
    return { answer: previous, numbers: { "next drawn": next }, said, means: "The words hardly matter, so it must be the positions.", show: { text: DRAWN } };
  }),
  number("previous equal", SHARE, 0.05, PREVIOUS_SHOWN, "Give each word of the first text the embedding of position 0: which weight does head 0-1 give the token before?", async (lab) => {
    const edits = editsOf(await scoresOf(lab, PREVIOUS, () => 0), PREVIOUS);
    const previous = await weightOf(lab, HAPPY, PREVIOUS, -1, edits);
    const next = await weightOf(lab, HAPPY, NEXT, 1, editsOf(await scoresOf(lab, NEXT, () => 0), NEXT));
    return {
      answer: previous,
      numbers: { "next equal": next },
      said: `${rounded(previous)}; head 0-2 gives the token after ${rounded(next)}. The picture changes only head 0-1.`,
      means: "Without positions the heads no longer know which token is the neighbour.",
      show: { edits },
    };
  }),
  choice(["the previous token", "the next token", "[SEP]"], PREVIOUS_SHOWN, "Reverse the position embeddings, so that the last token gets the first one: where does head 0-1 look?", async (lab) => {
    const edits = editsOf(await scoresOf(lab, PREVIOUS, (at, length) => length - 1 - at), PREVIOUS);
    const [previous, next] = [await weightOf(lab, HAPPY, PREVIOUS, -1, edits), await weightOf(lab, HAPPY, PREVIOUS, 1, edits)];
    return {
      answer: next > previous ? "the next token" : "the previous token",
      numbers: { "next reversed": next },
      said: `It gives the next token ${rounded(next)} and the previous one ${rounded(previous)}.`,
      means: "For this head, “before” only means one position lower: it gets word order from the position embeddings.",
      show: { edits },
    };
  }),
]);

const NOUNS = [["boy", "boys"], ["girl", "girls"], ["horse", "horses"], ["man", "men"], ["bird", "birds"], ["friend", "friends"], ["child", "children"], ["tree", "trees"], ["house", "houses"], ["woman", "women"]];
const ENDINGS = ["very tired.", "very happy.", "in the garden.", "very old.", "not there.", "near the river."];
const [ONE_BOY, BOYS] = ["The boy [MASK] very tired.", "The boys [MASK] very tired."];
const FAR = "the men who saw the horse [MASK] very tired.";
/** @type {Edit} */
const SUBJECT = { quantity: "scores", change: "hide", key: 2 };

/** A head that looks nowhere adds nothing. @param {number} layer @param {number} head @returns {Edit} */
const off = (layer, head) => ({ quantity: "probs", change: "zero", layer, head });

/** The probabilities of was and were at the mask. @param {Lab} lab @param {number[]} ids @param {string} text @param {Edit[]} [edits] */
async function wasWere(lab, [was, were], text, edits = []) {
  const run = await lab.run(text, edits);
  const probs = softmax(await run.logits(run.place("[MASK]")));
  return { was: probs[was], were: probs[were] };
}

/** @param {string[]} endings */
const pairsOf = (endings) => NOUNS.flatMap(([one, many]) => endings.map((end) => [`The ${one} [MASK] ${end}`, `The ${many} [MASK] ${end}`]));

/** The plurals of the pairs of which the model has both forms right. @param {Lab} lab @param {number[]} ids @param {string[]} endings */
async function rightOnes(lab, ids, endings) {
  const right = await lab.each(pairsOf(endings), async ([one, many]) => {
    const [single, plural] = [await wasWere(lab, ids, one), await wasWere(lab, ids, many)];
    return single.was >= single.were && plural.were > plural.was ? [many] : [];
  });
  return right.flat();
}

/** Whether the text has was before were, with the edits. @param {Lab} lab @param {number[]} ids @param {string} text @param {Edit[]} edits */
async function flips(lab, ids, text, edits) {
  const { was, were } = await wasWere(lab, ids, text, edits);
  return was >= were;
}

const COUNTED = pairsOf(ENDINGS).length;
const agreement = chapter("was or were", "tiny-bert", "A model reads a sentence with a gap, [MASK], and chooses a word for it. It has 4 layers of 4 heads. In each head every token looks at others: the lines of the picture, the stronger the larger the weight. Head 0-1 is head 1 of layer 0. How does the model choose?", [
  choice(["was", "were", "are", "is"], { text: BOYS }, `Which word does the model choose for “${BOYS}”?`, async (lab) => {
    const run = await lab.run(BOYS);
    const place = run.place("[MASK]");
    const [first, { were }] = [await run.first(place), await wasWere(lab, await lab.ids("was were"), BOYS)];
    return {
      answer: first,
      numbers: { "were before": were },
      said: `It chooses “${first}”; “were” has the probability ${rounded(were)}.`,
      means: "From now on its choices stand above the picture, each time after your guess.",
      show: { view: { layer: 0, head: 0, query: place } },
    };
  }),
  number("right", [0, COUNTED], 6, { text: BOYS }, `Of ${COUNTED} pairs such as “${ONE_BOY}” and “${BOYS}”, in how many does it prefer was for one and were for many?`, async (lab) => {
    const right = (await rightOnes(lab, await lab.ids("was were"), ENDINGS)).length;
    return { answer: right, said: `In ${right} of ${COUNTED}.`, means: "The model agrees with a subject that stands right before the gap.", show: { text: ONE_BOY } };
  }),
  number("hidden", [0, COUNTED], 6, { text: BOYS }, "Hide the subject from all other words: for how many of the plurals that were right does the model prefer “was” now?", async (lab) => {
    const ids = await lab.ids("was were");
    const right = await rightOnes(lab, ids, ENDINGS);
    const hidden = (await lab.each(right, (text) => flips(lab, ids, text, [SUBJECT]))).filter(Boolean).length;
    const means = "Everything that the gap knows about the number comes from the subject; without it, the model says was.";
    return { answer: hidden, said: `In ${hidden} of ${right.length}.`, means, show: { edits: [SUBJECT] } };
  }),
  choice(Array.from({ length: 16 }, (_, i) => `${Math.floor(i / 4)}-${i % 4}`), { text: BOYS }, "Switch one head off, written layer-head: which one turns nearly all of these plurals into was?", async (lab) => {
    const ids = await lab.ids("was were");
    const right = await rightOnes(lab, ids, ENDINGS.slice(0, 1));
    const heads = Array.from({ length: lab.about.layers * lab.about.heads }, (_, i) => [Math.floor(i / lab.about.heads), i % lab.about.heads]);
    const flipped = await lab.each(heads.flatMap(([layer, head]) => right.map((text) => ({ layer, head, text }))), async ({ layer, head, text }) =>
      ((await flips(lab, ids, text, [off(layer, head)])) ? [`${layer}-${head}`] : []));
    const numbers = Object.fromEntries(heads.map(([layer, head]) => [`${layer}-${head}`, flipped.flat().filter((name) => name === `${layer}-${head}`).length]));
    const [[first, most], [, next]] = Object.entries(numbers).sort(([, one], [, other]) => other - one);
    const [layer, head] = first.split("-").map(Number);
    return {
      answer: first,
      numbers,
      said: `Head ${first} flips ${most} of ${right.length}; no other flips more than ${next}.`,
      means: "This head looks at the token before, here the subject.",
      show: { edits: [off(layer, head)], view: { layer, head } },
    };
  }),
  choice(["was", "were"], { text: FAR }, `In “${FAR}” the men are tired, not the horse: which of the two words does the model prefer?`, async (lab) => {
    const numbers = await wasWere(lab, await lab.ids("was were"), FAR);
    return {
      answer: numbers.was > numbers.were ? "was" : "were",
      numbers,
      said: `was ${rounded(numbers.was)}, were ${rounded(numbers.were)}.`,
      means: "The model agrees with the neighbour of the gap, not with its subject. In the pairs both are the same word, so they could not show this.",
      show: { view: { layer: 0, head: 1 } },
    };
  }),
]);

const LATE = [2, 3];
const EARLY = [0, 1];

/** @param {number[]} layers @returns {Edit[]} */
const layersOff = (layers) => layers.map((layer) => ({ quantity: "probs", change: "zero", layer }));

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

/** How far the prediction moves with the edits, in nats. @param {Lab} lab @param {Edit[]} edits */
async function moved(lab, edits) {
  const before = await lab.run(BOYS);
  const place = before.place("[MASK]");
  const clean = await before.logits(place);
  return divergence(clean, await (await lab.run(BOYS, edits)).logits(place));
}

/** The values at [SEP] of the late layers. @type {Edit[]} */
const SEP_OFF = LATE.map((layer) => ({ quantity: "value", change: "zero", layer, position: 7 }));
const RESTING = { text: BOYS, view: { layer: 2, head: 0 } };
const notUse = chapter("Attention is not use", "tiny-bert", "A head can look at a token and read nothing from it.", [
  number("weight", SHARE, 0.05, { text: BOYS }, "Which part of their weight, 0 to 1, do the eight heads of layers 2 and 3 give [SEP], the mark at the end, on average?", async (lab) => {
    const weight = await resting(lab);
    return { answer: weight, said: `${rounded(weight)} of the weight.`, means: "Nearly all the time they look at a token without meaning. What do they read there?", show: RESTING };
  }),
  number("value sep", [0, 10], 0.1, RESTING, async (lab) => `A head adds up value vectors, times the weights. Between [CLS] and [SEP] the vectors are ${rounded((await lengths(lab)).others)} long on average, and how long are those at [SEP]?`, async (lab) => {
    const { sep, others } = await lengths(lab);
    const kept = await moved(lab, SEP_OFF);
    const means = `The values there are short: set to zero, as in the picture, they move the prediction by ${rounded(kept)} nats.`;
    return { answer: sep, numbers: { "value others": others, "sep off": kept }, said: `${rounded(sep)} against ${rounded(others)}.`, means, show: { edits: SEP_OFF } };
  }),
  number("late off", [0, 20], 0.1, RESTING, "Switch all heads of layers 2 and 3 off: how far does the prediction move, in nats of Kullback-Leibler divergence (0 the same, above 1 another prediction)?", async (lab) => {
    const late = await moved(lab, layersOff(LATE));
    const one = await moved(lab, layersOff([1]));
    const means = `Nearly nothing. But layer 1, which does not rest, also moves it by only ${rounded(one)}, so the reason may be that these layers are late, not that they rest.`;
    return { answer: late, numbers: { "layer 1 off": one }, said: `By ${rounded(late)} nats.`, means, show: { edits: layersOff(LATE) } };
  }),
  choice(["less than 0.1 nats", "0.1 to 1 nat", "more than 1 nat"], { text: BOYS }, "Switch all heads of layers 0 and 1 off instead: how far does it move now?", async (lab) => {
    const early = await moved(lab, layersOff(EARLY));
    const answer = early < 0.1 ? "less than 0.1 nats" : early <= 1 ? "0.1 to 1 nat" : "more than 1 nat";
    const means = "Half of the heads do the work, and a large weight did not tell which half. The picture shows head 2-0, which now lacks what they would have written.";
    return { answer, numbers: { "early off": early }, said: `By ${rounded(early)} nats.`, means, show: { edits: layersOff(EARLY), view: { layer: 2, head: 0 } } };
  }),
]);

const WORDS = "red horse blue door green tree book water stone house child king fire road boat bird star ship hand wall".split(" ");
const COUNT = 100;
/** @type {Edit[]} */
const OFF = [0, 2, 3].map((head) => off(1, head));

/** @param {string[]} words @param {number} again */
const textOf = (words, again) => [...words, ...words.slice(0, again)].join(" ");
/** The first drawn list. @param {number} length @param {number} again */
const listed = (length, again) => textOf(draws(WORDS, 1, length)[0], again);

/**
 * A step: of how many drawn lists the next word is the one that followed before.
 *
 * @param {string} name  of the number: which part of all lists
 * @param {[number, number]} lengths  words, and how many of them are repeated
 * @param {Scene} scene
 * @param {string} ask
 * @param {string} means
 * @param {Partial<Scene>} show
 */
function copyStep(name, [length, again], scene, ask, means, show) {
  return number(name, [0, COUNT], 10, scene, ask, async (lab) => {
    const right = (await lab.each(draws(WORDS, COUNT, length), async (words) => {
      const run = await lab.run(textOf(words, again), show.edits);
      return (await run.first(run.length - 1)) === words[again];
    })).filter(Boolean).length;
    return { answer: right, numbers: { [name]: right / COUNT }, said: `In ${right} of ${COUNT}.`, means, show };
  });
}

const INDUCTION = { layer: 1, head: 0 };
const copying = chapter("Copying", "tiny-gpt2", "Another model, a GPT-2, continues texts. It reads words in random order, then the first of them again. Can it continue the list?", [
  copyStep("all", [7, 3], { text: listed(7, 3) }, `Take ${COUNT} lists of seven words, three of them again, such as “${listed(7, 3)}”: in how many does it predict the word that followed the first time?`,
    "It copies, although the order means nothing: a quarter of what it was trained on was random tokens that come twice.", { view: INDUCTION }),
  copyStep("short", [3, 2], { text: listed(7, 3), view: INDUCTION }, `Take three words, two of them again, such as “${listed(3, 2)}”: in how many of ${COUNT} now?`,
    "With so few words it often chooses another one.", { text: listed(3, 2) }),
  copyStep("without", [7, 3], { text: listed(7, 3), view: INDUCTION }, `Take seven words again, and switch heads 1-0, 1-2 and 1-3 off: in how many of ${COUNT} now?`,
    "Nothing is copied without these three induction heads. But nothing is copied without head 0-1 either, so “needed” does not mean that a head does the work.", { edits: OFF }),
]);

const LARGEST = 4;

/** Of each query, query times key dimension by dimension, at the key with the largest weight. @param {Lab} lab @param {number} layer @param {number} head */
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
const seen = (layer, head) => ({ view: { view: "neuron", layer, head, query: 3 } });

const neurons = chapter("Vig's neurons", "tiny-bert", "Jesse Vig saw heads whose attention depends on a few dimensions, the same ones for every token. Does this hold here?", [
  number("2-0 shared", SHARE, 0.1, { text: HAPPY }, `Head 2-0 looks at [SEP]: of the ${LARGEST} dimensions with the largest query times key, what share, 0 to 1, do two tokens have in common on average (by chance ${LARGEST} of 32, ${LARGEST / 32})?`, async (lab) => {
    const shared = sharedOf(await productsOf(lab, 2, 0));
    return { answer: shared, said: `${rounded(shared)} of them.`, means: "Mostly the same dimensions for every token: the head looks for [SEP] whichever token asks.", show: seen(2, 0) };
  }),
  number("0-1 shared", SHARE, 0.05, { text: HAPPY, view: { layer: 0, head: PREVIOUS } }, "Which part do two tokens share in head 0-1, which looks at the token before?", async (lab) => {
    const [previous, next] = [sharedOf(await productsOf(lab, 0, 1)), sharedOf(await productsOf(lab, 0, 2))];
    const said = `${rounded(previous)}; head 0-2, which looks at the token after, ${rounded(next)}.`;
    return { answer: previous, numbers: { "0-2 shared": next }, said, means: "Little more than chance: each position has dimensions of its own.", show: seen(0, 1) };
  }),
  number("2-0 dimensions", [1, 32], 3, { text: HAPPY, view: { layer: 2, head: 0 } }, "How many of 32 dimensions, the largest first, make up 80 % of the positive products in head 2-0, on average?", async (lab) => {
    const [delimiter, next] = [dimensionsOf(await productsOf(lab, 2, 0)), dimensionsOf(await productsOf(lab, 0, 2))];
    const means = "The same dimensions, but many of them: “a few neurons” does not hold for this head.";
    return { answer: delimiter, numbers: { "0-2 dimensions": next }, said: `${rounded(delimiter)}, against ${rounded(next)} in head 0-2.`, means, show: seen(2, 0) };
  }),
]);

export const CHAPTERS = [agreement, wordOrder, oneWeight, notUse, copying, neurons];
