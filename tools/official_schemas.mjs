// Writes the official JSON schemas of the protocol, one file per revision.
//
//   node tools/official_schemas.mjs <npm folder> <output folder>
//
// The official conformance suite carries the schemas inside its minified bundle: one object literal each, named by a
// map from revision to schema. Both are found by their shape, since the minifier picks new names with every release.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const BUNDLE = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
const REVISIONS = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

const NAME = "[A-Za-z_$][\\w$]*";
const STRING = '`(?:\\\\.|[^`\\\\])*`|"(?:\\\\.|[^"\\\\])*"|\'(?:\\\\.|[^\'\\\\])*\'';

/** The variable that holds each revision's schema, read from `{"2025-03-26":A,"2025-06-18":B,…,[C]:D}`. */
function schemaNames(source) {
  const [map] = source.match(new RegExp(`\\{"${REVISIONS[0]}":${NAME},"${REVISIONS[1]}":[^{}]*\\}`)) ?? [];
  if (!map) throw new Error("the bundle has no map from revision to schema");
  const entry = new RegExp(`(?:"([^"]+)"|\\[(${NAME})\\]):(${NAME})`, "g");
  return new Map([...map.matchAll(entry)].map(([, key, variable, name]) => [key ?? stringIn(source, variable), name]));
}

/** The text that a variable holds: a revision that the minifier shares between places is a variable, not a key. */
function stringIn(source, variable) {
  return source.match(new RegExp(`[\\s,]${escaped(variable)}=[\`"']([^\`"']*)[\`"']`))?.[1];
}

/** The value of the object literal that a variable is declared with. */
function schemaIn(source, variable) {
  const declaration = source.match(new RegExp(`[\\s,]${escaped(variable)}=(?=\\{"?\\$schema"?:)`));
  if (!declaration) throw new Error(`the bundle declares no schema named ${variable}`);
  const literal = objectLiteral(source, declaration.index + declaration[0].length);
  return vm.runInNewContext(`(${literal})`, {}, { timeout: 5000 });
}

/** The source of the object literal at `start`, up to its closing brace; braces inside strings do not count. */
function objectLiteral(source, start) {
  const token = new RegExp(`[{}]|${STRING}`, "gs");
  token.lastIndex = start;
  let depth = 0;
  for (let match = token.exec(source); match; match = token.exec(source)) {
    if (match[0] === "{") depth += 1;
    if (match[0] === "}") depth -= 1;
    if (depth === 0) return source.slice(start, token.lastIndex);
  }
  throw new Error("an object literal has no end");
}

function escaped(name) {
  return name.replaceAll("$", "\\$");
}

function main([npm, out]) {
  if (!npm || !out) throw new Error("usage: node official_schemas.mjs <npm folder> <output folder>");
  const source = readFileSync(join(npm, BUNDLE), "utf8");
  const names = schemaNames(source);
  mkdirSync(out, { recursive: true });
  for (const revision of REVISIONS) {
    if (!names.has(revision)) throw new Error(`the bundle has no schema for ${revision}`);
    const schema = schemaIn(source, names.get(revision));
    writeFileSync(join(out, `${revision}.json`), JSON.stringify(schema, null, 1) + "\n");
  }
}

try {
  main(process.argv.slice(2));
} catch (error) {
  console.error(`official_schemas: ${error.message}`);
  process.exitCode = 1;
}
