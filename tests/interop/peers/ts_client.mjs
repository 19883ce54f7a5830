// The official TypeScript SDK as a client of the everything-server: fills in matrices of what works between the two.
//
//   node ts_client.mjs <npm folder> < runs.json > outcomes.json
//
// A run is {revision, server, cells}: the server is a command, or an address over HTTP or WebSocket; cells are named
// such as "tools/list to server" or "client sampling". All runs go on at the same time. The outcome of each is
// {matrix, wire}: in the matrix is an entry for every cell that has a probe, {"ok": true} or {"ok": false, "why": ...},
// and the wire is every message that its first connection carried.
import { AssertionError } from "node:assert";
import { readFileSync } from "node:fs";
import { Connection as Modern } from "./ts_2_connection.mjs";
import { Connection, MODERN, PATIENCE, STARTING, capabilitiesIn } from "./ts_connection.mjs";
import { PROBES, declared } from "./ts_probes.mjs";

/** The outcome of one probe. */
async function tried(probe, peer) {
  const { faults } = peer.connection;
  faults.length = 0;
  const patience = PATIENCE + (probe.starts ? STARTING : 0);
  let timer;
  const tooLate = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new AssertionError({ message: `nothing came within ${patience} ms` })), patience);
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

/** Try every cell that has a probe, over one connection. */
async function fill({ revision, server, cells }, outcome) {
  const held = revision >= MODERN ? Modern : Connection;
  const connection = await held.open(server, revision, capabilitiesIn(revision));
  for (const cell of cells) {
    if (cell in PROBES) outcome.matrix[cell] = await tried(PROBES[cell], { revision, connection });
  }
  for (const path of declared(connection.client.getServerCapabilities())) {
    outcome.matrix[`server ${path}`] ??= { ok: false, why: "declared, but not a cell of the matrix" };
  }
  await connection.close();
  outcome.wire = connection.transport.kept;
}

/** One run; a lost connection is the outcome of all remaining cells. */
async function follow(run) {
  const outcome = { matrix: {}, wire: [] };
  try {
    await fill(run, outcome);
  } catch (error) {
    const lost = { ok: false, why: `the connection was lost: ${reason(error)}` };
    for (const cell of run.cells) if (cell in PROBES) outcome.matrix[cell] ??= lost;
  }
  return outcome;
}

const runs = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(await Promise.all(runs.map(follow))));
