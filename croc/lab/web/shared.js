// What all charts share: visible range, cursor, smoothing and runs.
class Shared {
  constructor(runs) {
    Object.assign(this, { runs, unit: "steps", range: null, cursor: null, smoothing: 0 });
    this.hidden = new Set();
    this.listeners = [];
    this.scheduled = false;
    this.whole = false; // whether more than the cursor has changed
  }

  get shown() {
    return this.runs.filter((run) => !this.hidden.has(run) && perStep(run, this.unit));
  }

  // Drawn at most once per frame.
  set(change) {
    Object.assign(this, change);
    this.whole ||= Object.keys(change).some((name) => name !== "cursor");
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      const { whole } = this;
      this.scheduled = this.whole = false;
      for (const listener of this.listeners) listener(whole);
    });
  }

  // Keeps the visible part of the curves, as far as the runs agree.
  setUnit(unit) {
    const first = this.shown.find((run) => perStep(run, unit));
    const ratio = first ? perStep(first, unit) / perStep(first, this.unit) : 1;
    this.set({ unit, range: this.range?.map((edge) => edge * ratio) ?? null, cursor: null });
  }

  // From the first to the last point of all charts.
  get full() {
    let [low, high] = [Infinity, -Infinity];
    for (const run of this.shown) {
      for (const { x } of Object.values(run.curves)) {
        low = Math.min(low, x[0] * perStep(run, this.unit));
        high = Math.max(high, x.at(-1) * perStep(run, this.unit));
      }
    }
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  get seen() {
    return this.range ?? this.full;
  }

  zoom(factor, center) {
    const [low, high] = this.seen;
    this.show(center - (center - low) * factor, center + (high - center) * factor);
  }

  show(low, high) {
    const [first, last] = this.full;
    const span = Math.max(Math.min(high - low, last - first), (last - first) / 5000);
    const start = Math.min(Math.max(low, first), last - span);
    const all = span >= (last - first) * 0.999;
    this.set({ range: all ? null : [start, start + span] });
  }
}
