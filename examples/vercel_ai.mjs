// Get records with Vercel's AI SDK, with their confidence.
//
//     npm install ai @ai-sdk/openai-compatible zod
//     grace serve runs/demo/pocket_people/grace
//     node examples/vercel_ai.mjs "Under whom did the painter Geilel Krurkin study?"

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject } from "ai";
import { z } from "zod";

const url = `${process.env.GRACE_URL ?? "http://127.0.0.1:8000"}/v1`;
const apiKey = process.env.GRACE_API_KEY ?? "none";
const question = process.argv.slice(2).join(" ") || "Under whom did the painter Geilel Krurkin study?";

const listed = await fetch(`${url}/models`, { headers: { Authorization: `Bearer ${apiKey}` } });
const model = (await listed.json()).data[0].id;
const grace = createOpenAICompatible({
  name: "grace", baseURL: url, apiKey, supportsStructuredOutputs: true,
});
const answer = await generateObject({
  model: grace(model),
  schema: z.object({ name: z.string().max(40), kind: z.enum(["painter", "writer", "other"]) }),
  prompt: question,
  temperature: 0,
});
const [choice] = answer.response.body.choices; // as the server sent it
console.log(`${JSON.stringify(answer.object)}  confidence ${choice.confidence}`);
