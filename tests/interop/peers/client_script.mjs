// What the scripts of client libraries have in common: see client_script.py.
export const [command, ...args] = process.argv.slice(2);
export const url = command.startsWith("http") ? command : undefined;
export const STATIC = "test://static";
export const ADDENDS = { a: 2, b: 3 };
export const ADA = { who: "Ada" };
export const PATIENCE = 60; // seconds, for libraries that wait less for an answer than a busy machine may need

/** Prints what was found. */
export function found(tools, sum, more = {}) {
  console.log(JSON.stringify({ tools, sum, ...more }));
}
