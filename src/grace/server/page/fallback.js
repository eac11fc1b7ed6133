// Which model has answered, where a bigger one stands behind this one.

// Says that another model has answered, and why; "" if it was this one.
export function otherText(grace) {
  if (!grace?.first) return "";
  const { text, confidence } = grace.first;
  const sure = confidence === null ? "without a confidence" : `with confidence ${confidence.toFixed(2)}`;
  return `${grace.answered_by} has answered. This model said “${text.trim()}” ${sure}.`;
}

// Says what became of an answer of the session: the bigger model's is neither accepted nor abstained.
export function outcome(reply, accepted) {
  if (reply.other) return "forwarded";
  return accepted ? "accepted" : "abstained";
}

// Says how many answers of a session had each outcome.
export function sessionText(outcomes) {
  const count = (name) => outcomes.filter((outcome) => outcome === name).length;
  const forwarded = count("forwarded") ? `, ${count("forwarded")} forwarded` : "";
  return `This session: ${count("accepted")} accepted, ${count("abstained")} abstained${forwarded}.`;
}
