// Numbers as people read them.

export function seconds(value) {
  if (value === null || value === undefined) return "\u2013";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} \u00b5s`;
  if (value < 0.01) return `${(value * 1e3).toFixed(2)} ms`;
  if (value < 0.1) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  return value < 100 ? `${value.toFixed(1)} s` : `${value.toFixed(0)} s`;
}

export function rate(value) {
  if (value === null || value === undefined) return "\u2013";
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(2);
  return value < 100 ? value.toFixed(1) : count(value);
}

export function count(value) {
  if (value < 10_000) return Math.round(value).toString();
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`;
  return value < 1e9 ? `${(value / 1e6).toFixed(1)}M` : `${(value / 1e9).toFixed(1)}G`;
}

export function share(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part > 0 && part < whole / 100 ? 1 : 0)} %` : "\u2013";
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function clockTime(epoch) {
  return new Date(epoch * 1000).toLocaleTimeString();
}
