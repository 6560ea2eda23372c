// Line charts as SVG, redrawn whenever their shared state changes.

const EDGE = { top: 8, right: 12, bottom: 24, left: 50 };
const HEIGHT = 190;

class Chart {
  constructor(metric, title, about, shared) {
    this.metric = metric;
    this.shared = shared;
    this.width = 0;
    this.stale = true;
    this.near = false;
    this.readout = make("div", { class: "readout", "aria-hidden": "true" });
    this.svg = makeSvg("svg", { "aria-hidden": "true", focusable: "false", height: HEIGHT });
    this.plot = make("div", {
      class: "plot", tabindex: "0", role: "slider", "aria-label": `${title}: cursor`,
      "aria-orientation": "horizontal", "aria-keyshortcuts": "ArrowLeft ArrowRight + - 0",
    }, this.svg);
    const caption = make("figcaption", {}, make("h4", {}, title),
      make("span", { class: "soft small" }, about));
    this.node = make("figure", { class: "card chart", "data-metric": metric },
      caption, this.readout, this.plot);
    shared.listeners.push((whole) => this.refresh(whole));
  }

  // Curves of the runs that are shown and have this metric, in the unit of the axis.
  get lines() {
    const { shared, metric } = this;
    return shared.shown.filter((run) => Object.hasOwn(run.curves, metric)).map((run) => {
      const curve = run.curves[metric];
      const factor = perStep(run, shared.unit);
      const xs = factor === 1 ? curve.x : curve.x.map((step) => step * factor);
      return { run, xs, ys: curve.y, lo: curve.lo ?? curve.y, hi: curve.hi ?? curve.y,
        thinned: Boolean(curve.lo), smooth: smoothed(xs, curve.y, shared.smoothing) };
    });
  }

  get references() {
    const lines = new Map();
    for (const { run } of this.drawn) {
      const line = referencesOf(run).get(this.metric);
      if (line) lines.set(`${line.label} ${line.value}`, line);
    }
    return [...lines.values()];
  }

  refresh(whole) {
    if (!this.near) this.stale = true;
    else if (whole) this.draw();
    else this.drawCursor();
  }

  // Called when the chart comes near the window, or is resized.
  appear(near) {
    this.near = near;
    const width = Math.floor(this.plot.clientWidth);
    if (near && (this.stale || width !== this.width)) this.draw();
  }

  draw() {
    this.stale = false;
    this.width = Math.max(160, Math.floor(this.plot.clientWidth));
    this.drawn = this.lines;
    this.x = this.shared.seen;
    this.y = this.fitted();
    fill(this.svg, { width: this.width, viewBox: `0 0 ${this.width} ${HEIGHT}` }, []);
    this.inside = makeSvg("svg", { x: EDGE.left, y: EDGE.top, width: this.across, height: this.down,
      overflow: "hidden" });
    this.overlay = makeSvg("g");
    this.drawCurves();
    this.svg.replaceChildren(this.axes(), this.inside, this.overlay);
    this.drawReferences();
    this.drawCursor();
  }

  get across() { return this.width - EDGE.left - EDGE.right; }
  get down() { return HEIGHT - EDGE.top - EDGE.bottom; }
  atX(x) { return ((x - this.x[0]) / (this.x[1] - this.x[0])) * this.across; }
  atY(y) { return (1 - (y - this.y[0]) / (this.y[1] - this.y[0])) * this.down; }
  toX(px) { return this.x[0] + ((px - EDGE.left) / this.across) * (this.x[1] - this.x[0]); }

  // The visible points of a curve, and one more on each side.
  within(xs) {
    return [Math.max(0, placeOf(xs, this.x[0]) - 1), Math.min(xs.length, placeOf(xs, this.x[1]) + 2)];
  }

  // From the smallest to the largest visible value, with a margin.
  fitted() {
    let [low, high] = [Infinity, -Infinity];
    for (const { xs, lo, hi } of this.drawn) {
      const [first, end] = this.within(xs);
      for (let at = first; at < end; at += 1) {
        low = Math.min(low, lo[at]);
        high = Math.max(high, hi[at]);
      }
    }
    if (low > high) return [0, 1];
    for (const line of this.references.filter((reference) => reference.fits)) {
      low = Math.min(low, line.label === "log P" ? 0 : line.value);
      high = Math.max(high, line.value);
    }
    const air = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    // What is never negative gets no axis below zero.
    return [low >= 0 ? Math.max(0, low - air) : low - air, high + air];
  }

  axes() {
    const group = makeSvg("g", { class: "axes" });
    const down = ticksIn(...this.y, 5);
    const downTexts = tickTexts(down);
    down.forEach((tick, at) => {
      const y = EDGE.top + this.atY(tick);
      group.append(
        makeSvg("line", { x1: EDGE.left, x2: this.width - EDGE.right, y1: y, y2: y }),
        makeSvg("text", { x: EDGE.left - 7, y: y + 4, "text-anchor": "end" }, downTexts[at]),
      );
    });
    const across = ticksIn(...this.x, this.across / 75, this.shared.unit !== "epochs");
    const texts = tickTexts(across);
    across.forEach((tick, at) => {
      const x = EDGE.left + this.atX(tick);
      // The outermost would hang over the edge.
      const room = texts[at].length * 3.6;
      const place = Math.min(x, this.width - room - 1);
      group.append(
        makeSvg("line", { x1: x, x2: x, y1: EDGE.top + this.down, y2: EDGE.top + this.down + 4 }),
        makeSvg("text", { x: place, y: HEIGHT - 6, "text-anchor": "middle" }, texts[at]),
      );
    });
    return group;
  }

  path(xs, ys) {
    const [first, end] = this.within(xs);
    let path = "";
    for (let at = first; at < end; at += 1) {
      path += `${at > first ? "L" : "M"}${this.atX(xs[at]).toFixed(1)} ${this.atY(ys[at]).toFixed(1)}`;
    }
    return end - first === 1 ? `${path}h.01` : path;
  }

  drawCurves() {
    const draw = (run, kind, d) => this.inside.append(
      makeSvg("path", { class: `${kind} ${run.color}`, d }));
    for (const line of this.drawn) {
      if (line.thinned) {
        const back = this.path([...line.xs], line.lo).slice(1).split("L").reverse().join("L");
        draw(line.run, "band", `${this.path(line.xs, line.hi)}L${back}Z`);
      }
      if (line.smooth !== line.ys) draw(line.run, "line faint", this.path(line.xs, line.ys));
    }
    for (const line of this.drawn) draw(line.run, "line", this.path(line.xs, line.smooth));
  }

  // Each run may have its own line: those too close for one text each share it, with the range.
  drawReferences() {
    const [low, high] = this.y;
    const texts = [];
    for (const { label, value } of this.references.sort((a, b) => a.value - b.value)) {
      const y = this.atY(Math.min(high, Math.max(low, value)));
      const off = value > high ? " ↑" : value < low ? " ↓" : "";
      if (!off) this.inside.append(makeSvg("line", { class: "reference", x1: 0, x2: "100%", y1: y, y2: y }));
      const last = texts[texts.length - 1];
      if (last && last.y - y < 15) Object.assign(last, { to: value, y, off });
      else texts.push({ label, from: value, to: value, y, off });
    }
    for (const { label, from, to, y, off } of texts) {
      const values = [...new Set([from, to].map((value) => numberText(value, 3)))].join(" to ");
      this.inside.append(makeSvg("text", { class: "reference", x: this.across - 4,
        y: y < 16 ? y + 13 : y - 5, "text-anchor": "end" }, `${label} ${values}${off}`));
    }
  }

  // Value of each run at the cursor or its end; null where the run has none.
  values(cursor) {
    return this.drawn.map((line) => {
      const { xs } = line;
      if (cursor === null) return { line, at: xs.length - 1 };
      const at = nearestPlace(xs, cursor);
      const usual = (xs[xs.length - 1] - xs[0]) / Math.max(1, xs.length - 1);
      return { line, at: Math.abs(xs[at] - cursor) <= Math.max(usual * 2, 1e-9) ? at : null };
    });
  }

  drawCursor() {
    if (!this.drawn) return;
    const { cursor } = this.shared;
    const values = this.values(cursor);
    this.overlay.replaceChildren();
    if (cursor !== null && cursor >= this.x[0] && cursor <= this.x[1]) {
      const x = EDGE.left + this.atX(cursor);
      this.overlay.append(makeSvg("line", { class: "cursor", x1: x, x2: x, y1: EDGE.top,
        y2: EDGE.top + this.down }));
      for (const { line, at } of values.filter((value) => value.at !== null)) {
        this.overlay.append(makeSvg("circle", { class: line.run.color, r: 4,
          cx: EDGE.left + this.atX(line.xs[at]), cy: EDGE.top + this.atY(line.smooth[at]) }));
      }
    }
    this.showReadout(cursor, values);
  }

  showReadout(cursor, values) {
    const at = cursor ?? Math.max(...this.drawn.map(({ xs }) => xs[xs.length - 1]), this.x[0]);
    const ends = new Set(this.drawn.map(({ xs }) => xs[xs.length - 1]));
    const place = cursor === null && ends.size > 1 ? "at the end" : placeText(at, this.shared.unit);
    const parts = values.map(({ line, at: index }) => [line, valueText(line, index)]);
    const many = this.shared.runs.length > 1;
    this.readout.replaceChildren(make("span", { class: "soft" }, place), ...parts.map(([line, text]) =>
      make("span", { class: "value" }, swatchOf(line.run),
        many ? make("span", { class: "run" }, line.run.name) : null, make("b", {}, text))));
    const [low, high] = this.shared.full;
    fill(this.plot, { "aria-valuemin": low, "aria-valuemax": high, "aria-valuenow": at,
      "aria-valuetext": [place, ...parts.map(([line, text]) =>
        many ? `${line.run.name} ${text}` : text)].join(", ") }, []);
  }
}

function placeText(x, unit) {
  const noun = { steps: "step", images: "images", epochs: "epoch" }[unit];
  return unit === "images" ? `${numberText(x)} ${noun}` : `${noun} ${numberText(x)}`;
}

// Of a thinned curve, the mean and the range.
function valueText(line, at) {
  if (at === null) return "–";
  const text = numberText(line.smooth[at]);
  if (!line.thinned || line.smooth !== line.ys) return text;
  return `${text} (${numberText(line.lo[at], 3)} to ${numberText(line.hi[at], 3)})`;
}
