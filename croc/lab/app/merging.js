// The merging as a film, and the curve of its cost.

import { change, listen, state } from "./state.js";

const FRAME_MS = 700;
const HEIGHT = 160;
const EDGE = { left: 54, right: 12, top: 12, bottom: 30 };
const SVG = "http://www.w3.org/2000/svg";

const say = (cost, digits) => cost.toFixed(digits).replace("-", "−");
const part = (id) => document.getElementById(id);
let timer = null;

export function makeMerging() {
  part("curve").setAttribute("height", HEIGHT);
  new ResizeObserver(show).observe(part("curve").parentElement);
  part("play").addEventListener("click", () => (timer ? pause() : play()));
  part("back").addEventListener("click", () => goTo(shownStep() - 1));
  part("forward").addEventListener("click", () => goTo(shownStep() + 1));
  part("step").addEventListener("input", (event) => goTo(Number(event.target.value)));
  part("stop").addEventListener("click", () => change("mode", { mode: "clusters", patch: null }));
  listen("trace mode head picture", show);
  listen("mode", () => { if (state.mode !== "merging") pause(); });
}

const longest = () => Math.max(0, ...state.traces.map((trace) => trace?.steps.length ?? 0));

// Outside of the film, the step that was chosen.
function shownStep() {
  if (state.mode === "merging") return Math.min(state.step, longest() - 1);
  const trace = state.traces.find(Boolean);
  return trace ? trace.steps.findIndex((step) => step.k === trace.chosen) : 0;
}

function goTo(step, going = false) {
  if (!longest()) return;
  if (!going) pause();
  const within = Math.min(Math.max(step, 0), longest() - 1);
  change("mode", { mode: "merging", patch: null, step: within });
}

function play() {
  if (!longest()) return;
  const ended = state.mode !== "merging" || state.step >= longest() - 1;
  timer = setInterval(next, FRAME_MS);
  goTo(ended ? 0 : state.step, true);
}

function next() {
  if (state.step >= longest() - 1) pause();
  else goTo(state.step + 1, true);
}

function pause() {
  clearInterval(timer);
  timer = null;
  part("play").textContent = "Play";
}

function show() {
  const traces = state.traces;
  part("play").textContent = timer ? "Pause" : "Play";
  part("stop").disabled = state.mode !== "merging";
  part("step").max = Math.max(longest() - 1, 1);
  part("step").value = shownStep();
  const trace = traces.find(Boolean);
  for (const id of ["play", "back", "forward", "step"]) part(id).disabled = !trace;
  if (!trace) {
    part("curve").replaceChildren();
    part("merging-says").textContent = "";
    return;
  }
  const k = trace.steps[Math.min(shownStep(), trace.steps.length - 1)].k;
  part("step").setAttribute("aria-valuetext", `K ${k}`);
  part("merging-says").textContent = describe(traces, k);
  drawCurve(traces, k);
}

function describe(traces, k) {
  const chosen = traces.filter(Boolean).map((trace) => trace.chosen).join(" and ");
  return state.mode === "merging" ? `at K ${k}, chosen ${chosen}` : `chosen K ${chosen}`;
}

function drawCurve(traces, k) {
  const all = traces.filter(Boolean);
  const costs = all.flatMap((trace) => trace.steps.map((step) => step.cost));
  const [low, high] = [Math.min(...costs), Math.max(...costs)];
  const most = all[0].steps[0].k;
  const width = part("curve").clientWidth; // drawn for it, so that letters keep their size
  const x = (at) => EDGE.left +
    ((most - at) / Math.max(most - 2, 1)) * (width - EDGE.left - EDGE.right);
  const y = (cost) => HEIGHT - EDGE.bottom -
    ((cost - low) / (high - low || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const now = make("line", { x1: x(k), x2: x(k), y1: EDGE.top - 6, y2: HEIGHT - EDGE.bottom + 4,
    class: "now" });
  const lines = traces.flatMap((trace, model) => (trace ? drawLine(trace, model, x, y) : []));
  part("curve").replaceChildren(...axes(low, high, most, x, y, width), now, ...lines);
  part("curve").setAttribute("aria-label", all.map((trace) => `Transport cost from K ${most} to ` +
    `K 2; the lowest, at K ${trace.chosen}, is chosen`).join(". "));
}

function drawLine(trace, model, x, y) {
  const places = trace.steps.map((step) => [x(step.k), y(step.cost)]);
  const line = make("polyline", { points: places.join(" "), class: `cost cost-${model}` });
  const dots = places.map(([cx, cy], number) => {
    const chosen = trace.steps[number].k === trace.chosen;
    const dot = make("circle", { cx, cy, r: chosen ? 6 : 2.5,
      class: `dot dot-${model}${chosen ? " chosen" : ""}` });
    dot.append(make("title", {},
      `K ${trace.steps[number].k}: cost ${say(trace.steps[number].cost, 4)}`));
    return dot;
  });
  return [line, ...dots];
}

function axes(low, high, most, x, y, width) {
  const bottom = HEIGHT - EDGE.bottom;
  const marks = [];
  const every = most > 14 ? 2 : 1;
  for (let k = most; k >= 2; k -= 1) {
    if (k % every === 0 || k === 2) {
      marks.push(make("text", { x: x(k), y: bottom + 20, class: "mark", "text-anchor": "middle" }, k));
    }
  }
  for (const cost of [low, high]) {
    marks.push(make("text", { x: EDGE.left - 8, y: y(cost) + 4, class: "mark",
      "text-anchor": "end" }, say(cost, 3)));
  }
  marks.push(make("text", { x: 4, y: bottom + 20, class: "mark" }, "K"));
  return [make("line", { x1: EDGE.left, x2: width - EDGE.right, y1: bottom + 2, y2: bottom + 2,
    class: "axis" }), ...marks];
}

function make(kind, attributes, text) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
