// Everything works without this file; it adds keys, live pages and a filter for static tables.
import { startKeys } from "./keys.js";
import { followRun } from "./live.js";
import { filterTables } from "./table.js";

startKeys();
followRun();
filterTables();
