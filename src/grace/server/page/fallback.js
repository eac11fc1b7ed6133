// Which model has answered, where a bigger one stands behind this one.

// Says that another model has answered, and why; "" if it was this one.
export function otherText(grace) {
  if (!grace?.first) return "";
  const { text, confidence } = grace.first;
  const sure = confidence === null ? "without a confidence" : `with confidence ${confidence.toFixed(2)}`;
  return `${grace.answered_by} has answered. This model said “${text.trim()}” ${sure}.`;
}
