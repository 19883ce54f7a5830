// Judges messages of revision 2024-11-05, for which no JSON schema is published with the conformance suite.
//
//   node zod_2024.mjs <npm folder>
//
// Reads {message, sender, answers} and writes {ok, error}, one JSON object per line, until its input ends. The judge is
// the zod types of the official TypeScript SDK of that time. They are found by name: CallToolRequestSchema belongs to
// the method that it names, and CallToolResultSchema to its answer. They leave two things of the specification open:
// the type of `instructions` in the answer to initialize, and the annotations of content.
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const SDK = "node_modules/sdk-2024-11-05/dist/types.js";
const types = await import(pathToFileURL(resolve(process.argv[2], SDK)));

/** The definition of a method in one of the SDK's unions, as [name, schema]; undefined if that side never sends it. */
function definition(union, method) {
  return Object.entries(types).find(
    ([, schema]) => types[union].options.includes(schema) && schema.shape.method.value === method,
  );
}

/** The schemas that a message has to satisfy, or a sentence that says why there are none. */
function schemasFor({ message, sender, answers }) {
  const [ours, theirs] = sender === "server" ? ["Server", "Client"] : ["Client", "Server"];
  if ("error" in message) return [types.JSONRPCErrorSchema];
  if ("result" in message) {
    const asked = definition(`${theirs}RequestSchema`, answers);
    if (!asked) return `a ${sender} is never asked ${answers}`;
    const body = types[asked[0].replace("Request", "Result")] ?? types.EmptyResultSchema;
    return [types.JSONRPCResponseSchema.extend({ result: body })];
  }
  const kind = "id" in message ? "Request" : "Notification";
  const sent = definition(`${ours}${kind}Schema`, message.method);
  if (!sent) return `a ${sender} never sends the ${kind.toLowerCase()} ${message.method}`;
  return [types[`JSONRPC${kind}Schema`], sent[1]];
}

/** What is wrong with a message, or null. */
function complaint(question) {
  const schemas = schemasFor(question);
  if (typeof schemas === "string") return schemas;
  const { message } = question;
  if (message.method === "notifications/message" && message.params?.data === undefined) {
    return "params/data: Required"; // z.unknown() takes a missing value for a value
  }
  return schemas.flatMap((schema) => faults(schema.safeParse(message).error)).join("; ") || null;
}

/** One short phrase per issue; of the branches of a union, only the one that fits best is told. */
function faults(error) {
  return (error?.issues ?? []).flatMap((issue) => {
    const branches = (issue.unionErrors ?? []).toSorted((a, b) => a.issues.length - b.issues.length);
    return branches.length ? faults(branches[0]) : [`${issue.path.join("/")}: ${issue.message}`];
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const error = complaint(JSON.parse(line));
  process.stdout.write(JSON.stringify({ ok: error === null, error }) + "\n");
}
