// Numbers: searching, smoothing, ticks and formatting.

// The first index in sorted numbers whose value is not below x.
function placeOf(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearestPlace(xs, x) {
  const after = placeOf(xs, x);
  if (after === 0) return 0;
  if (after === xs.length) return xs.length - 1;
  return x - xs[after - 1] <= xs[after] - x ? after - 1 : after;
}

// Exponential moving average with bias correction; uneven distances are taken into account.
function smoothed(xs, ys, weight) {
  if (weight <= 0 || ys.length < 2) return ys;
  const usual = (xs[xs.length - 1] - xs[0]) / (xs.length - 1) || 1;
  let sum = 0;
  let mass = 0;
  return ys.map((y, at) => {
    const apart = at ? Math.min((xs[at] - xs[at - 1]) / usual, 1e3) : 1;
    const kept = weight ** apart;
    sum = kept * sum + (1 - kept) * y;
    mass = kept * mass + (1 - kept);
    return mass > 0 ? sum / mass : y;
  });
}

// About `count` round numbers in a range; only integers if `whole`.
function ticksIn(low, high, count, whole = false) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999) * power;
  if (whole) step = Math.max(1, Math.round(step));
  const ticks = [];
  const first = Math.ceil(low / step - 1e-9);
  // Counted, since adding 1 to a number beyond 2⁵³ may leave it as it is.
  for (let at = 0; at <= 3 * count; at += 1) {
    const tick = Number(((first + at) * step).toPrecision(12));
    if (!(tick <= high + step * 1e-9)) break;
    if (tick !== ticks[ticks.length - 1]) ticks.push(tick);
  }
  return ticks;
}

const GROUPED = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 2 });

// 1,234 and 0.001234; powers of ten only for very large and small numbers.
function numberText(value, digits = 4) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  if (size >= 10 ** (digits - 1)) return GROUPED.format(value).replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

// The ticks of an axis, all with the same number of decimals.
function tickTexts(ticks) {
  const largest = Math.max(...ticks.map(Math.abs));
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : largest || 1;
  if (largest >= 1e4) return ticks.map((tick) => COMPACT.format(tick).replace("-", "−"));
  if (step < 1e-4) return ticks.map((tick) => (tick ? tick.toExponential(1).replace("-", "−") : "0"));
  const decimals = Math.min(8, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  return ticks.map((tick) => tick.toFixed(decimals).replace("-", "−"));
}

// How many of a unit one step of a run is; null if the run has no such number.
function perStep(run, unit) {
  if (unit === "images") return run.options["optim.batch"] ?? null;
  if (unit === "epochs") return run.perEpoch ? 1 / run.perEpoch : null;
  return 1;
}
