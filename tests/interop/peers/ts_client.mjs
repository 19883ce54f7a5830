// The official TypeScript SDK as a client of the everything-server: fills in a matrix of what works between the two.
//
//   node ts_client.mjs <npm folder> [--wire FILE] REVISION SERVER-ARGV... < cells.json > matrix.json
//
// The cells come in as a JSON list, such as "tools/list to server" or "client sampling".
// Out comes an object with an entry for every cell that has a probe: {"ok": true}, or {"ok": false, "why": ...}.
// With --wire, every message that the first connection carried is kept in a file, one JSON object per line.
import { AssertionError } from "node:assert";
import { readFileSync, writeFileSync } from "node:fs";
import { CAPABILITIES, Connection, PATIENCE } from "./ts_connection.mjs";
import { PROBES, declared } from "./ts_probes.mjs";

/** The outcome of one probe. */
async function tried(probe, peer) {
  const { faults } = peer.connection;
  faults.length = 0;
  let timer;
  const tooLate = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new AssertionError({ message: `nothing came within ${PATIENCE} ms` })), PATIENCE);
  });
  try {
    await Promise.race([probe(peer), tooLate]);
  } catch (error) {
    return { ok: false, why: reason(error) };
  } finally {
    clearTimeout(timer);
  }
  return faults.length ? { ok: false, why: `the SDK could not read: ${faults.map(reason)}` } : { ok: true };
}

/** Why something failed, in one line. */
function reason(error) {
  return error instanceof AssertionError ? error.message : `${error?.name}: ${error?.message}`;
}

/** Tries every cell that has a probe, over one connection. */
async function fill(matrix, cells, argv, revision, wire) {
  const connection = await Connection.open(argv, revision, CAPABILITIES);
  for (const cell of cells) {
    if (cell in PROBES) matrix[cell] = await tried(PROBES[cell], { argv, revision, connection });
  }
  for (const path of declared(connection.client.getServerCapabilities())) {
    matrix[`server ${path}`] ??= { ok: false, why: "declared, but not a cell of the matrix" };
  }
  await connection.close();
  if (wire) writeFileSync(wire, connection.transport.kept.map((entry) => JSON.stringify(entry) + "\n").join(""));
}

async function main([, ...args]) {
  const wire = args[0] === "--wire" ? args.splice(0, 2)[1] : null;
  const [revision, ...argv] = args;
  const cells = JSON.parse(readFileSync(0, "utf8"));
  const matrix = {};
  try {
    await fill(matrix, cells, argv, revision, wire);
  } catch (error) {
    const lost = { ok: false, why: `the connection was lost: ${reason(error)}` };
    for (const cell of cells) if (cell in PROBES) matrix[cell] ??= lost;
  }
  console.log(JSON.stringify(matrix));
}

await main(process.argv.slice(2));
