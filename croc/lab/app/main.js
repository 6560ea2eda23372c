// Puts the parts together, and asks the server whenever an answer may have changed.

import { get, Lane, say } from "./api.js";
import { followColours } from "./colours.js";
import { makeControls } from "./controls.js";
import { makeMerging } from "./merging.js";
import { makePanels, samePatch } from "./panels.js";
import { choosePicture, showPhotograph } from "./photograph.js";
import { change, listen, modelCount, question, state } from "./state.js";
import { readTiles } from "./tiles.js";
import { makeUploads } from "./uploads.js";

const REST_MS = 120; // the merging is asked for when the boxes and sliders rest

let lanes = [];
let resting = null;

async function begin() {
  change("start", { start: await get("/api/start") });
  const { models, pictures } = state.start;
  change("start", { values: { ...models[0].defaults }, heads: models.map(() => 0) });
  document.getElementById("models").textContent = models
    .map(({ name, view_px, grid }) => `${name}: crops of ${view_px}² px, ${grid} × ${grid} patches`)
    .join(" · ");
  document.getElementById("explorer").classList.toggle("two", models.length > 1);
  lanes = models.map((_, model) => makeLanes(model));
  makePanels();
  makeControls();
  makeMerging();
  makeUploads();
  showPhotograph();
  listen("picture boxes values", askAll);
  listen("head mode", askMore);
  await choosePicture(pictures[0]);
}

function makeLanes(model) {
  return {
    clusters: new Lane("/api/clusters", async (answer, asked, elapsed) => {
      const tiles = await readTiles(answer.maps, answer.grid);
      paintHeads(answer, tiles, model, asked);
      keep("answer", "clusters", model, asked, { ...answer, tiles });
      showTiming(answer.ms, elapsed);
    }),
    similarity: new Lane("/api/similarity", async (answer, asked) => {
      const crops = await readTiles(answer.crops, answer.grid);
      const whole = await readTiles(answer.whole, answer.grid);
      keep("answer", "similarity", model, asked, { ...answer, crops, whole });
    }),
    trace: new Lane("/api/trace", async (answer, asked) => {
      const tiles = await readTiles(answer.maps, answer.grid);
      keep("trace", "traces", model, asked, { ...answer, tiles });
    }),
  };
}

function paintHeads({ heads }, tiles, model, asked) {
  const before = state.clusters[model]?.heads ?? [];
  heads.forEach((head, number) => {
    const { boxes } = asked;
    const own = before.length === heads.length ? before[number].painted : null;
    head.painted = followColours(tiles, 2 * number, head.k, boxes, state.picture, own);
  });
}

// Unless the photograph has changed meanwhile: then it is an answer about another one.
function keep(topic, name, model, asked, answer) {
  if (asked.picture !== state.picture.id) return;
  const answers = Array.from({ length: modelCount() }, (_, n) => state[name][n]);
  answers[model] = answer;
  change(topic, { [name]: answers });
}

function askAll() {
  lanes.forEach((lane, model) => lane.clusters.ask(question(model)));
  askMore();
}

function askMore(topic) {
  if (state.mode === "similarity") askSimilarity();
  if (topic === "mode") return; // the merging does not depend on what is shown
  clearTimeout(resting);
  resting = setTimeout(askTraces, REST_MS);
}

function askSimilarity() {
  lanes.forEach((lane, model) => {
    const { grid } = state.start.models[model];
    const patch = samePatch(state.patch, grid);
    lane.similarity.ask({ ...question(model), head: head(model), view: state.patch.view, patch });
  });
}

function askTraces() {
  lanes.forEach((lane, model) => lane.trace.ask({ ...question(model), head: head(model) }));
}

// The last tokens have one head, whichever was chosen before.
const head = (model) => (state.values.tokens === "last" ? 0 : state.heads[model]);

function showTiming({ network, clusters, all }, elapsed) {
  document.getElementById("timing").textContent = network < 1
    ? `Clustered again in ${Math.round(all)} ms.`
    : `Answered in ${Math.round(elapsed)} ms: network ${Math.round(network)}, ` +
      `clusters ${Math.round(clusters)}.`;
}

begin().catch((error) => say(error.message));
