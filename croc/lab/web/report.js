// The parts of a report that need a script: curves with their controls, clusters, the search.

function buildCurves(place, data) {
  const shared = new Shared(data.runs);
  place.append(toolbar(shared));
  const charts = [];
  for (const [group, specs] of chartsOf(data.runs)) {
    if (!specs.length) continue;
    const grid = make("div", { class: "charts" });
    for (const [metric, title, about] of specs) {
      const chart = new Chart(metric, title, about, shared);
      addGestures(chart);
      charts.push(chart);
      grid.append(chart.node);
    }
    place.append(make("h3", {}, group), grid);
  }
  watch(charts);
}

// Only what is visible or nearby is drawn; everything before printing.
function watch(charts) {
  const byNode = new Map(charts.map((chart) => [chart.node, chart]));
  const nearby = new IntersectionObserver((entries) => {
    for (const entry of entries) byNode.get(entry.target).appear(entry.isIntersecting);
  }, { rootMargin: "400px" });
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) byNode.get(target).appear(byNode.get(target).near);
  });
  for (const { node } of charts) {
    nearby.observe(node);
    sizes.observe(node);
  }
  window.addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw()));
}

function toolbar(shared) {
  const smoothing = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0,
    id: "smoothing" });
  const output = make("output", { for: "smoothing" }, "0");
  smoothing.addEventListener("input", () => {
    output.textContent = smoothing.value;
    shared.set({ smoothing: Number(smoothing.value) });
  });
  const units = ["steps", "images", "epochs"];
  const select = make("select", { id: "unit" }, ...units.filter((unit) =>
    shared.runs.some((run) => perStep(run, unit))).map((unit) => make("option", {}, unit)));
  select.addEventListener("change", () => shared.setUnit(select.value));
  const reset = make("button", { type: "button", "data-reset": "", disabled: "" }, "Show all");
  reset.addEventListener("click", () => shared.set({ range: null }));
  shared.listeners.push(() => {
    reset.disabled = shared.range === null;
    const [low, high] = shared.seen.map((edge) => numberText(edge, 3));
    reset.textContent = shared.range ? `Zoomed to ${low} … ${high}: show all` : "Show all";
  });
  return make("div", { class: "card toolbar no-print" },
    shared.runs.length > 1 ? legend(shared) : null,
    make("div", { class: "field" }, make("label", { for: "unit" }, "Axis"), select),
    make("div", { class: "field grow" }, make("label", { for: "smoothing" }, "Smoothing"), smoothing, output),
    reset,
    make("p", { class: "soft small hint mouse" }, "Drag over a chart or use Ctrl and the wheel to zoom, "
      + "double click to show all. Keys: ← → cursor, + − zoom, 0 all."),
    make("p", { class: "soft small hint touch" }, "Touch a chart to read it, drag over it to zoom."));
}

function legend(shared) {
  return make("div", { class: "legend", role: "group", "aria-label": "Runs shown" },
    ...shared.runs.map((run) => {
      const box = make("input", { type: "checkbox", checked: "" });
      box.addEventListener("change", () => {
        if (box.checked) shared.hidden.delete(run);
        else shared.hidden.add(run);
        shared.set({ hidden: shared.hidden });
      });
      return make("label", {}, box, swatchOf(run), run.name);
    }));
}

// Pictures of all runs under one slider over every step that any of them has.
function buildClusters(place, data) {
  const runs = data.runs.filter((run) => run.pictures.length);
  const steps = [...new Set(runs.flatMap((run) => run.pictures.map(({ step }) => step)))];
  steps.sort((a, b) => a - b);
  const slider = make("input", { type: "range", min: 0, max: steps.length - 1, step: 1,
    value: steps.length - 1, id: "picture-step" });
  const output = make("output", { for: "picture-step", class: "step-shown" });
  const boards = runs.map((run) => ({ run, node: make("div", { class: "board" }), shown: null }));
  const show = () => {
    const step = steps[Number(slider.value)];
    output.textContent = `step ${numberText(step)}`;
    slider.setAttribute("aria-valuetext", output.textContent);
    for (const board of boards) showPicture(board, step, runs.length > 1);
  };
  slider.addEventListener("input", show);
  place.append(
    make("div", { class: "card toolbar no-print" }, make("div", { class: "field grow" },
      make("label", { for: "picture-step" }, "Training"), slider, output)),
    make("p", { class: "soft small about" }, "Two augmented views of each image, one above the other, and "
      + "the clusters of the teacher's attention heads. A cluster has one color in both views; "
      + "one that is in only one view is hatched and ignored by training. Where a patch belongs to several, "
      + "their colors mix; the share is that of its largest one, on average."),
    ...boards.map((board) => board.node));
  show();
}

// The last picture of a run that is not after the step.
function showPicture(board, step, many) {
  const { run, node } = board;
  const picture = run.pictures.findLast((earlier) => earlier.step <= step) ?? run.pictures[0];
  if (board.shown === picture) return;
  board.shown = picture;
  const named = `${run.name}, step ${numberText(picture.step)}`;
  const { about } = picture;
  const images = about ? about.images : ["clusters"];
  node.replaceChildren(...[
    many && make("h3", { class: "run-name" }, swatchOf(run), named),
    about && about.heads < about.of &&
      make("p", { class: "soft small" }, `The first ${about.heads} of ${about.of} heads.`),
    make("div", { class: "blocks" }, ...images.map((name, image) =>
      pictureBlock(picture, image, images.length, name, named))),
  ].filter(Boolean));
}

// One image's rows of the sheet: the picture is as wide as the block, and shifted up.
function pictureBlock({ about, size, src }, image, count, name, named) {
  const img = make("img", { class: "slice", src, alt: `${name}: two views and their clusters, ${named}` });
  img.style.aspectRatio = `${size[0]} / ${size[1] / count}`;
  img.style.objectPosition = `0 ${count > 1 ? (100 * image) / (count - 1) : 0}%`;
  const block = make("figure", { class: "card block" });
  if (about) {
    const heads = make("div", { class: "heads soft" }, make("span", {}, "views"));
    heads.style.gridTemplateColumns = `repeat(${about.heads + 1}, 1fr)`;
    about.k[image].forEach((k, head) => heads.append(make("span", {},
      make("span", {}, `head ${head}`), make("span", {}, `K ${k}, ${about.shared[image][head]} shared`),
      about.share ? make("span", {}, `share ${about.share[image][head].toFixed(2)}`) : null)));
    block.append(make("figcaption", {}, name), heads);
  }
  block.append(img);
  return block;
}

// Every word must occur in an option's name or value.
function buildSearch(input, count) {
  const rows = [...document.querySelectorAll("[data-option]")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = texts.map((text) => words.every((word) => text.includes(word)));
    rows.forEach((row, at) => { row.hidden = !fits[at]; });
    for (const part of document.querySelectorAll("[data-part]")) {
      part.hidden = !part.querySelector("[data-option]:not([hidden])");
    }
    count.textContent = words.length ? `${fits.filter(Boolean).length} of ${rows.length}` : "";
  });
}

const data = JSON.parse(document.getElementById("page-data").textContent);
const placeFor = (name) => document.querySelector(`[data-place="${name}"]`);
if (placeFor("curves")) buildCurves(placeFor("curves"), data);
if (placeFor("clusters")) buildClusters(placeFor("clusters"), data);
buildSearch(document.getElementById("search"), document.getElementById("search-count"));
