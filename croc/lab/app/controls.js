// The clustering's settings, each with its value and a button that resets it to the run's.

import { change, listen, state } from "./state.js";

const INFINITE = "inf"; // a number that JSON does not have
const NAMES = { queries: "q", keys: "k", values: "v", last: "last" };

export function makeControls() {
  const { limits } = state.start;
  const [least, most] = limits.position_weight;
  document.getElementById("controls").append(
    makeSlider("position_weight", "λ_pos", "weight of the position", [least, most + 0.25], 0.25,
      (number) => (number > most ? INFINITE : number)),
    makeSlider("k_start", "K_start", "clusters before any merge", limits.k_start, 1),
    makeSlider("sharpness", "Sharpness", "of the assignments", limits.sharpness, 1),
    makeTokens(limits.tokens),
    makeDraw(),
  );
  document.getElementById("reset-all").addEventListener("click", () =>
    change("values", { values: { ...defaults() }, seed: 0 }));
}

const defaults = () => state.start.models[0].defaults;

const setValue = (name, value) => change("values", { values: { ...state.values, [name]: value } });

const format = (value) => NAMES[value] ??
  (value === INFINITE ? "∞" : String(Math.round(value * 100) / 100));

// Now and whenever a value changes.
function keepShown(show) {
  listen("values", show);
  show();
}

function makeSlider(name, title, subtitle, [min, max], step, read = Number) {
  const id = `slider-${name}`;
  const slider = make("input", { type: "range", id, min, max, step });
  const output = make("output", { for: id });
  slider.addEventListener("input", () => setValue(name, read(Number(slider.value))));
  keepShown(() => {
    const value = state.values[name];
    slider.value = value === INFINITE ? max : value;
    output.textContent = format(value);
    slider.setAttribute("aria-valuetext", format(value));
  });
  return make("div", { class: "control" }, make("div", { class: "words" },
    make("label", { for: id }, title), make("span", { class: "soft small" }, subtitle),
    output, makeReset(title, name)), slider);
}

function makeReset(title, name) {
  const button = make("button", { type: "button", class: "reset",
    "aria-label": `Reset ${title} to ${format(defaults()[name])}` }, "↺");
  button.addEventListener("click", () => setValue(name, defaults()[name]));
  keepShown(() => { button.disabled = state.values[name] === defaults()[name]; });
  return button;
}

function makeTokens(kinds) {
  const output = make("output");
  const choices = make("div", { class: "choices" }, ...kinds.map((kind) => {
    const input = make("input", { type: "radio", name: "tokens", value: kind,
      "aria-label": kind === "last" ? "last tokens" : kind });
    input.addEventListener("change", () => setValue("tokens", kind));
    keepShown(() => { input.checked = kind === state.values.tokens; });
    return make("label", {}, input, make("span", {}, NAMES[kind]));
  }));
  keepShown(() => { output.textContent = state.values.tokens; });
  return make("fieldset", { class: "control" },
    make("legend", { class: "visually-hidden" }, "Tokens that are clustered"),
    make("div", { class: "words" }, make("span", {}, "Tokens"),
      make("span", { class: "soft small" }, "of the last block"), output,
      makeReset("tokens", "tokens")), choices);
}

// The initial centroids are random; another draw shows how much depends on them.
function makeDraw() {
  const output = make("output");
  const button = make("button", { type: "button", id: "draw" }, "Draw again");
  button.addEventListener("click", () => change("values", { seed: state.seed + 1 }));
  keepShown(() => { output.textContent = `no. ${state.seed + 1}`; });
  return make("div", { class: "control words" }, make("span", {}, "Start"),
    make("span", { class: "soft small" }, "at random"), output, button);
}
