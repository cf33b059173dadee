// Runs beside an answer, inside the sandbox: calls one function and reports what it returned.
// The value is all that can be claimed on descriptor 3; what it should be is not known in here.
"use strict";
const fs = require("fs");
const vm = require("vm");
const write = fs.writeSync.bind(fs);
const stringify = JSON.stringify.bind(JSON);

function plain(value, depth) {
  if (depth > 50) throw new Error("the value is nested more than 50 deep");
  if (value === undefined || value === null) return null;
  if (typeof value === "bigint") return { t: "integer", v: value.toString() };
  if (typeof value === "number") {
    if (Number.isFinite(value)) return value;
    return Number.isNaN(value) ? { t: "nan", v: null } : { t: "infinity", v: value > 0 ? 1 : -1 };
  }
  if (typeof value === "string" || typeof value === "boolean") return value;
  const inner = (item) => plain(item, depth + 1);
  const kind = Object.prototype.toString.call(value);
  if (Array.isArray(value) || ArrayBuffer.isView(value)) {
    return { t: "list", v: Array.from(value, inner) };
  }
  if (kind === "[object Set]") return { t: "set", v: Array.from(value, inner) };
  if (kind === "[object Map]") {
    return { t: "dict", v: Array.from(value, ([k, v]) => [String(k), inner(v)]) };
  }
  if (typeof value === "object") {
    return { t: "dict", v: Object.entries(value).map(([k, v]) => [k, inner(v)]) };
  }
  throw new TypeError(`a ${typeof value} was returned`);
}

async function main() {
  const call = JSON.parse(fs.readFileSync("/tmp/call.json", "utf8"));
  const path = process.argv[2] || "/tmp/main.js";
  const source = fs.readFileSync(path, "utf8");
  globalThis.require = require;
  globalThis.module = { exports: {} };
  globalThis.exports = globalThis.module.exports;
  vm.runInThisContext(source, { filename: path });
  const names = call.function.split(".");
  const exported = globalThis.module.exports;
  let target;
  if (exported !== null && typeof exported === "object" && names[0] in exported) {
    target = exported[names[0]];
  } else if (typeof exported === "function" && exported.name === names[0]) {
    target = exported;
  } else {
    target = vm.runInThisContext(names[0]);
  }
  let owner;
  for (const name of names.slice(1)) {
    const isClass = typeof target === "function" && /^class\b/.test(String(target));
    owner = isClass && !(name in target) ? new target() : target;
    target = owner[name];
  }
  if (typeof target !== "function") throw new TypeError(`${call.function} is no function`);
  const value = await target.apply(owner, call.args);
  let body = Buffer.from(stringify(plain(value, 0)));
  while (body.length) body = body.subarray(write(3, body));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
