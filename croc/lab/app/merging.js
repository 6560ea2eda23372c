// The merging as an animation, and the curve of its cost.

import { change, clamp, listen, state } from "./state.js";

const FRAME_MS = 700;
const HEIGHT = 160;
const EDGE = { left: 54, right: 12, top: 12, bottom: 30 };

const format = (cost, digits) => cost.toFixed(digits).replace("-", "−");
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
  listen("mode", () => { if (state.mode !== "merging") pause(); });
  listen("trace mode head picture", show);
}

const lastStep = () => Math.max(0, ...state.traces.map((trace) => (trace?.steps.length ?? 1) - 1));

// Outside the animation, the chosen step.
function shownStep() {
  if (state.mode === "merging") return Math.min(state.step, lastStep());
  const trace = state.traces.find(Boolean);
  return trace ? trace.steps.findIndex((step) => step.k === trace.chosen) : 0;
}

function goTo(step, playing = false) {
  if (!playing) pause();
  change("mode", { mode: "merging", patch: null, step: clamp(step, 0, lastStep()) });
}

function play() {
  const ended = state.mode !== "merging" || state.step >= lastStep();
  timer = setInterval(() => {
    if (state.step >= lastStep()) pause();
    else goTo(state.step + 1, true);
  }, FRAME_MS);
  goTo(ended ? 0 : state.step, true);
}

function pause() {
  clearInterval(timer);
  timer = null;
  part("play").textContent = "Play";
}

function show() {
  const traces = state.traces.filter(Boolean);
  part("play").textContent = timer ? "Pause" : "Play";
  part("stop").disabled = state.mode !== "merging";
  part("step").max = Math.max(lastStep(), 1);
  part("step").value = shownStep();
  for (const id of ["play", "back", "forward", "step"]) part(id).disabled = !traces.length;
  if (!traces.length) {
    part("curve").replaceChildren();
    part("merging-state").textContent = "";
    return;
  }
  const { steps } = traces[0];
  const { k } = steps[Math.min(shownStep(), steps.length - 1)];
  const chosen = traces.map((trace) => trace.chosen).join(" and ");
  part("step").setAttribute("aria-valuetext", `K ${k}`);
  part("merging-state").textContent =
    state.mode === "merging" ? `at K ${k}, chosen ${chosen}` : `chosen K ${chosen}`;
  part("curve").setAttribute("aria-label",
    `Transport cost from K ${steps[0].k} to K 2; the lowest, at K ${chosen}, is chosen`);
  drawCurve(traces, steps[0].k, k);
}

function drawCurve(traces, most, now) {
  const costs = traces.flatMap((trace) => trace.steps.map((step) => step.cost));
  const [low, high] = [Math.min(...costs), Math.max(...costs)];
  const width = part("curve").clientWidth; // drawn for it, so that letters keep their size
  const [right, bottom] = [width - EDGE.right, HEIGHT - EDGE.bottom];
  const x = (k) => EDGE.left + ((most - k) / Math.max(most - 2, 1)) * (right - EDGE.left);
  const y = (cost) => bottom - ((cost - low) / (high - low || 1)) * (bottom - EDGE.top);
  const text = (content, at, down, anchor) =>
    makeSvg("text", { x: at, y: down, class: "mark", "text-anchor": anchor }, String(content));
  const marks = [text("K", 4, bottom + 20, "start"),
    ...[low, high].map((cost) => text(format(cost, 3), EDGE.left - 8, y(cost) + 4, "end"))];
  for (let k = 2; k <= most; k += most > 14 ? 2 : 1) {
    marks.push(text(k, x(k), bottom + 20, "middle"));
  }
  const lines = state.traces.flatMap((trace, model) => (trace ? [
    makeSvg("polyline", { class: `cost cost-${model}`,
      points: trace.steps.map(({ k, cost }) => [x(k), y(cost)]).join(" ") }),
    ...trace.steps.map(({ k, cost }) => makeSvg("circle", { cx: x(k), cy: y(cost),
      r: k === trace.chosen ? 6 : 2.5,
      class: `dot dot-${model}${k === trace.chosen ? " chosen" : ""}` },
    makeSvg("title", {}, `K ${k}: cost ${format(cost, 4)}`))),
  ] : []));
  part("curve").replaceChildren(
    makeSvg("line", { x1: EDGE.left, x2: right, y1: bottom + 2, y2: bottom + 2, class: "axis" }),
    makeSvg("line", { x1: x(now), x2: x(now), y1: EDGE.top - 6, y2: bottom + 4, class: "now" }),
    ...marks, ...lines);
}
