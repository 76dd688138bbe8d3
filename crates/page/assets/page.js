"use strict";
/*
 * The page of sluiced: keeps the tables that the daemon streams, and draws the part that is shown.
 *
 * Names come from configurations and from other programs, so all text goes through textContent. Lists are virtual: only rows that can be
 * seen have elements, which are used again while the list scrolls, so that a thousand rows cost what thirty cost. Nothing runs between
 * two samples unless the reader scrolls or types.
 */
(() => {
  // --- The state -------------------------------------------------------------------------------

  /** By name of a table: its columns by name, and its rows by name. */
  const tables = new Map();
  const events = [];
  const MOST_EVENTS = 500;
  let tick = 0;
  let everyMs = 500;
  let lastAt = 0;

  const rowsOf = (table) => (tables.has(table) ? tables.get(table).rows : new Map());
  const value = (table, row, column) => row[tables.get(table).columns.get(column)];

  /** The place of each row of a table in the order of names, in which fw.2 comes before fw.10. Made anew only for other rows. */
  function ranksOf(name) {
    const table = tables.get(name);
    if (table.ranks === null) table.ranks = new Map([...table.rows.keys()].sort(byName).map((row, at) => [row, at]));
    return table.ranks;
  }

  function setFull(data) {
    tables.clear();
    for (const [name, table] of Object.entries(data.tables)) {
      tables.set(name, { columns: new Map(table.columns.map((column, at) => [column, at])), rows: new Map(Object.entries(table.rows)), ranks: null });
    }
    events.length = 0;
    addEvents(data.events);
  }

  function setDelta(data) {
    for (const [name, differs] of Object.entries(data.tables)) {
      const table = tables.get(name);
      const { rows } = table;
      if (differs.set || differs.gone) table.ranks = null;
      for (const [row, values] of Object.entries(differs.set || {})) rows.set(row, values);
      for (const [row, changes] of Object.entries(differs.change || {})) {
        const values = rows.get(row);
        for (const [column, now] of Object.entries(changes)) values[column] = now;
      }
      for (const row of differs.gone || []) rows.delete(row);
    }
    addEvents(data.events);
  }

  function addEvents(more) {
    for (const event of more || []) events.unshift(event);
    if (events.length > MOST_EVENTS) events.length = MOST_EVENTS;
  }

  // --- Numbers as text -------------------------------------------------------------------------

  const NONE = "–";

  function short(number) {
    if (number === null || number === undefined) return NONE;
    const size = Math.abs(number);
    for (const [unit, of] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (size >= of) return `${(number / of).toPrecision(3)} ${unit}`;
    }
    return size >= 100 || Number.isInteger(number) ? String(Math.round(number)) : number.toPrecision(2);
  }

  function time(ns) {
    if (ns === null || ns === undefined) return NONE;
    for (const [unit, of] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (ns >= of) return `${(ns / of).toPrecision(3)} ${unit}`;
    }
    return `${Math.round(ns)} ns`;
  }

  function age(seconds) {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
  }

  const percent = (share) => (share === null || share === undefined ? NONE : `${Math.round(share)} %`);
  const byName = new Intl.Collator("en", { numeric: true }).compare;

  /** A colour of a name: the same one each time. */
  function colour(name) {
    let hash = 0;
    for (const character of name) hash = (hash * 31 + character.codePointAt(0)) >>> 0;
    return `hsl(${hash % 360} 55% 52%)`;
  }

  // --- Elements --------------------------------------------------------------------------------

  const byId = (id) => document.getElementById(id);

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  /** Sets the text of an element that has nothing else, if it is another. */
  function say(element, text) {
    const now = String(text);
    if (element.said !== now) {
      element.said = now;
      element.textContent = now;
    }
  }

  function classed(element, className) {
    if (element.className !== className) element.className = className;
  }

  /** Has as many children as are wanted: new ones are made, further ones are hidden. */
  function children(parent, wanted, create) {
    while (parent.children.length < wanted) parent.append(create());
    for (let i = 0; i < parent.children.length; i += 1) parent.children[i].hidden = i >= wanted;
    return parent.children;
  }

  // --- Lists -----------------------------------------------------------------------------------

  /** A list of which only the rows in sight have elements. */
  class List {
    /** `create()` makes a row's element, `fill(element, item)` writes an item into it; items have a key. */
    constructor({ label, height, create, fill, open, role = "grid" }) {
      Object.assign(this, { height, create, fill, open, role, items: [], selected: null, pool: [] });
      this.space = make("div", "space");
      this.space.setAttribute("role", "presentation");
      this.none = make("p", "empty", "Nothing of this kind.");
      this.element = make("div", "list", this.none, this.space);
      this.element.tabIndex = 0;
      this.element.setAttribute("role", role);
      this.element.setAttribute("aria-label", label);
      this.element.addEventListener("scroll", () => this.soon(), { passive: true });
      this.element.addEventListener("keydown", (event) => this.key(event));
      this.element.addEventListener("click", (event) => this.click(event));
      new ResizeObserver(() => this.soon()).observe(this.element);
    }

    set(items) {
      this.items = items;
      this.none.hidden = items.length > 0;
      const height = `${items.length * this.height}px`;
      if (this.space.style.height !== height) this.space.style.height = height;
      if (this.role === "grid") this.element.setAttribute("aria-rowcount", String(items.length));
      this.soon();
    }

    /** Draws before the next frame, once. */
    soon() {
      if (this.isDue) return;
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        this.draw();
      });
    }

    draw() {
      const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - 2);
      const many = Math.ceil(this.element.clientHeight / this.height) + 4;
      const last = Math.min(this.items.length, first + many);
      while (this.pool.length < last - first) {
        const row = this.create();
        row.style.height = `${this.height}px`;
        row.setAttribute("role", this.role === "grid" ? "row" : "option");
        row.id = `row-${(List.rows = (List.rows || 0) + 1)}`;
        this.pool.push(row);
        this.space.append(row);
      }
      let active = null;
      this.pool.forEach((row, at) => {
        const number = first + at;
        row.hidden = number >= last;
        if (row.hidden) return;
        const item = this.items[number];
        row.item = item;
        row.style.transform = `translateY(${number * this.height}px)`;
        if (this.role === "grid") row.setAttribute("aria-rowindex", String(number + 1));
        const isSelected = item.key === this.selected;
        row.classList.toggle("selected", isSelected);
        row.setAttribute("aria-selected", String(isSelected));
        if (isSelected) active = row.id;
        this.fill(row, item);
      });
      if (active) this.element.setAttribute("aria-activedescendant", active);
      else this.element.removeAttribute("aria-activedescendant");
    }

    select(number) {
      if (this.items.length === 0) return;
      const at = Math.max(0, Math.min(this.items.length - 1, number));
      this.selected = this.items[at].key;
      const top = at * this.height;
      const { scrollTop, clientHeight } = this.element;
      if (top < scrollTop) this.element.scrollTop = top;
      else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
      this.soon();
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const at = this.items.findIndex((item) => item.key === this.selected);
      const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
      const to = { ArrowDown: at + 1, ArrowUp: at < 0 ? 0 : at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.items.length - 1 };
      if (event.key in to) this.select(to[event.key]);
      else if (event.key === "Enter" && at >= 0 && this.open) this.open(this.items[at]);
      else return;
      event.preventDefault();
    }

    click(event) {
      const row = event.target.closest(".row");
      if (!row || !row.item) return;
      this.selected = row.item.key;
      this.soon();
      if (this.open) this.open(row.item);
    }
  }

  // --- Parts -----------------------------------------------------------------------------------

  /** A panel with a filter and a list of rows with columns, by which they can be sorted. */
  function tablePart({ title, columns, items, open }) {
    const wide = columns.map((column) => column.width || "minmax(60px, 1fr)").join(" ");
    const narrow = columns.filter((column) => !column.wide).map((column) => column.width || "minmax(50px, 1fr)").join(" ");
    const phone = matchMedia("(max-width: 640px)");
    const laid = [];
    const lay = (element) => {
      element.style.gridTemplateColumns = phone.matches ? narrow : wide;
      return element;
    };
    phone.addEventListener("change", () => laid.forEach(lay));
    const classOf = (column) => `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}`.trim();
    let sorted = { column: 0, up: !columns[0].down };
    const heads = make("div", "heads grid");
    laid.push(lay(heads));
    const places = columns.map((column, at) => {
      const button = make("button", "", column.label);
      button.type = "button";
      button.title = column.title || column.label;
      button.addEventListener("click", () => {
        sorted = { column: at, up: sorted.column === at ? !sorted.up : !column.number };
        part.update();
      });
      const place = make("span", classOf(column), button);
      place.setAttribute("role", "columnheader");
      heads.append(place);
      return place;
    });
    const list = new List({
      label: title,
      height: 32,
      open,
      create: () => {
        const cells = columns.map((column) => {
          const cell = make("span", classOf(column));
          cell.setAttribute("role", "gridcell");
          return cell;
        });
        const row = make("div", "row grid", ...cells);
        laid.push(lay(row));
        return row;
      },
      fill: (row, item) => {
        columns.forEach((column, at) => {
          const cell = row.children[at];
          say(cell, column.text(item));
          if (column.mood) classed(cell, `${classOf(column)} ${column.mood(item)}`.trim());
        });
      },
    });
    const tools = filtered(title, () => part.update());
    const part = {
      title,
      list,
      panel: make("section", "panel", tools.element, heads, list.element),
      filter: tools.input,
      update() {
        const all = items();
        const shown = all.filter((item) => tools.passes(item.words || item.key));
        const { column, up } = sorted;
        const of = columns[column].sort || columns[column].text;
        const rank = (item) => of(item) ?? -Infinity;
        const order = (a, b) => {
          const [x, y] = [rank(a), rank(b)];
          const differ = typeof x === "number" && typeof y === "number" ? (x < y ? -1 : x > y ? 1 : 0) : byName(String(x), String(y));
          return (up ? differ : -differ) || a.rank - b.rank;
        };
        shown.sort(order);
        places.forEach((place, at) => {
          if (at === column) place.setAttribute("aria-sort", up ? "ascending" : "descending");
          else place.removeAttribute("aria-sort");
        });
        tools.count(shown.length, all.length);
        list.set(shown);
      },
    };
    return part;
  }

  /** A panel with a filter and a list of drawings. */
  function drawnPart({ title, height, create, fill, items, open }) {
    const list = new List({ label: title, height, create, fill, open, role: "listbox" });
    const tools = filtered(title, () => part.update());
    const part = {
      title,
      list,
      panel: make("section", "panel", tools.element, list.element),
      filter: tools.input,
      update() {
        const all = items();
        const shown = all.filter((item) => tools.passes(item.words || item.key));
        tools.count(shown.length, all.length);
        list.set(shown);
      },
    };
    return part;
  }

  function filtered(title, changed) {
    const input = make("input");
    input.type = "search";
    input.placeholder = "filter";
    input.setAttribute("aria-label", `Filter ${title}`);
    input.addEventListener("input", changed);
    const count = make("span", "count");
    return {
      element: make("div", "tools", input, count),
      input,
      passes: (words) => input.value === "" || words.toLowerCase().includes(input.value.trim().toLowerCase()),
      count: (shown, all) => say(count, shown === all ? `${all}` : `${shown} of ${all}`),
    };
  }

  /** The rows of a table as items: key, and a getter of its values by column. */
  function itemsOf(table, words) {
    if (!tables.has(table)) return [];
    const ranks = ranksOf(table);
    const items = [];
    for (const [key, row] of rowsOf(table)) {
      const get = (column) => value(table, row, column);
      items.push({ key, table, get, rank: ranks.get(key), words: words ? `${key} ${words(get)}` : key });
    }
    return items;
  }

  // Services: sums over their NFs, made once for each sample.
  let services = new Map();

  function sumServices() {
    services = new Map();
    for (const nf of itemsOf("nf")) {
      const name = nf.get("service");
      let sum = services.get(name);
      if (!sum) services.set(name, (sum = { all: 0, running: 0, rx: 0, drops: 0, fill: 0, throttled: 0, failed: 0 }));
      sum.all += 1;
      sum.running += nf.get("state") === "running" ? 1 : 0;
      sum.failed += nf.get("state") === "failed" ? 1 : 0;
      sum.throttled += nf.get("throttled") ? 1 : 0;
      sum.rx += nf.get("rx_pps") || 0;
      sum.drops += nf.get("drop_pps") || 0;
      sum.fill = Math.max(sum.fill, nf.get("capacity") > 0 ? nf.get("queue") / nf.get("capacity") : 0);
    }
  }

  // Chains.

  function makeHop() {
    return make("div", "hop", make("div"), make("div", "small"), make("div", "fill", make("i")));
  }

  function fillHop(hop, { name, note, fill, mood }) {
    classed(hop, `hop ${mood}`.trim());
    const [title, small, bar] = hop.children;
    say(title, name);
    hop.title = name;
    say(small, note);
    bar.hidden = fill === null;
    if (fill !== null) {
      classed(bar, fill >= 0.8 ? "fill full" : "fill");
      bar.firstChild.style.transform = `scaleX(${Math.min(1, fill).toFixed(2)})`;
    }
  }

  /** A link is as thick as its rate has digits. */
  function fillLink(link, rate) {
    classed(link, rate > 0 ? "link" : "link idle");
    link.style.height = `${rate > 0 ? 1 + Math.round(Math.log10(1 + rate)) : 1}px`;
  }

  function hopsOf(chain) {
    const port = (name, rate) => ({ name, note: `${short(rate)}/s`, fill: null, mood: "port" });
    const rateOf = (name, column) => {
      const row = rowsOf("port").get(name);
      return row ? value("port", row, column) : null;
    };
    const [first, ...others] = chain.ingress;
    const ingress = others.length === 0 ? port(first, rateOf(first, "rx_pps")) : port(`${chain.ingress.length} ports`, chain.get("in_pps"));
    const inner = chain.get("services").map((written) => {
      const sum = services.get(written.split(":")[0]);
      if (!sum) return { name: written, note: "no NF", fill: null, mood: "fails" };
      const many = sum.all > 1 ? `${sum.running}/${sum.all}, ` : "";
      const dropped = sum.drops > 0 ? `, ${short(sum.drops)} dropped` : "";
      const mood = sum.failed === sum.all || sum.running === 0 ? "fails" : sum.throttled > 0 ? "refuses" : "";
      return { name: written, note: `${many}${short(sum.rx)}/s${dropped}`, fill: sum.fill, mood };
    });
    return [ingress, ...inner, port(chain.get("egress"), rateOf(chain.get("egress"), "tx_pps"))];
  }

  /** By state of a chain, an SLO or an NF. */
  const MOODS = {
    ...{ open: "good", refused: "warn", bypassing: "warn", down: "bad" },
    ...{ kept: "good", exceeded: "warn", violated: "bad" },
    ...{ running: "", starting: "warn", stopping: "warn", restarting: "warn", failed: "bad", expected: "warn" },
  };
  const mood = (column) => (item) => MOODS[item.get(column)] || "";

  const chains = drawnPart({
    title: "Chains",
    height: 84,
    open: (item) => detail.open(item),
    items: () => {
      const ports = new Map();
      for (const rule of itemsOf("rule")) {
        const chain = rule.get("chain");
        if (!ports.has(chain)) ports.set(chain, new Set());
        ports.get(chain).add(rule.get("port") || "any port");
      }
      const all = itemsOf("chain", (get) => get("services").join(" "));
      for (const chain of all) chain.ingress = [...(ports.get(chain.key) || ["no rule"])];
      return all.sort((a, b) => a.rank - b.rank);
    },
    create: () => {
      const head = make("div", "head", make("strong"), make("span"), make("span"), make("span", "wide"));
      return make("div", "row chain", head, make("div", "way"));
    },
    fill: (row, chain) => {
      const [head, way] = row.children;
      const [name, state, rates, times] = head.children;
      say(name, chain.key);
      say(state, chain.get("throttled") ? "throttled" : chain.get("state"));
      classed(state, MOODS[chain.get("state")] || "");
      const lost = chain.get("drop_pps");
      say(rates, `${short(chain.get("in_pps"))} in, ${short(chain.get("out_pps"))} out${lost > 0 ? `, ${short(lost)} dropped` : ""}`);
      classed(rates, lost > 0 ? "warn" : "");
      say(times, `p50 ${time(chain.get("p50_ns"))}, p99 ${time(chain.get("p99_ns"))}`);
      const hops = hopsOf(chain);
      // Hop, link, hop, link, hop.
      const parts = children(way, hops.length * 2 - 1, () => (way.children.length % 2 === 0 ? makeHop() : make("div", "link")));
      hops.forEach((hop, at) => {
        fillHop(parts[at * 2], hop);
        if (at > 0) fillLink(parts[at * 2 - 1], at === hops.length - 1 ? chain.get("out_pps") : chain.get("in_pps"));
      });
    },
  });

  // Cores.

  const MOST_SEGMENTS = 40;

  const cores = drawnPart({
    title: "Cores",
    height: 58,
    items: () => {
      const found = new Map();
      const add = (core, name, share, of) => {
        if (!found.has(core)) found.set(core, { key: `core ${core}`, core, parts: [], total: 0 });
        found.get(core).parts.push({ name, share, of });
        found.get(core).total += share;
      };
      for (const thread of itemsOf("thread")) add(thread.get("core"), `thread ${thread.get("role")}`, thread.get("busy") || 0, "thread");
      for (const nf of itemsOf("nf")) add(nf.get("core"), nf.key, nf.get("cpu") || 0, nf.get("service"));
      const all = [...found.values()].sort((a, b) => a.core - b.core);
      for (const core of all) {
        core.parts.sort((a, b) => b.share - a.share);
        core.words = `${core.key} ${core.parts.map((part) => part.name).join(" ")}`;
      }
      return all;
    },
    create: () => make("div", "row core", make("strong"), make("div", "bar"), make("div", "names")),
    fill: (row, core) => {
      const [name, bar, names] = row.children;
      say(name, core.key);
      const shown = core.parts.filter((part) => part.share > 0).slice(0, MOST_SEGMENTS);
      // Shares of NFs and threads are of their own windows, and may add up to a little more.
      const whole = Math.max(100, core.total);
      const segments = children(bar, shown.length, () => make("i"));
      shown.forEach((part, at) => {
        segments[at].style.width = `${((part.share / whole) * 100).toFixed(2)}%`;
        segments[at].style.background = colour(part.of);
        segments[at].title = `${part.name} ${percent(part.share)}`;
      });
      const first = shown.slice(0, 6).map((part) => `${part.name} ${percent(part.share)}`);
      say(names, first.length > 0 ? `${percent(core.total)}: ${first.join(", ")}` : `idle, ${core.parts.length} on it`);
    },
  });

  // Tables.

  const column = (label, name, more = {}) => ({ label, text: (item) => item.get(name) ?? NONE, sort: (item) => item.get(name), ...more });
  const rate = (label, name, more = {}) => column(label, name, { number: true, text: (item) => short(item.get(name)), ...more });
  const times = (label, name, more = {}) => column(label, name, { number: true, text: (item) => time(item.get(name)), ...more });
  const named = (label, width = "minmax(90px, 2fr)") => ({ label, width, text: (item) => item.key, sort: (item) => item.rank });

  const nfs = tablePart({
    title: "NFs",
    items: () => itemsOf("nf", (get) => `${get("service")} ${get("state")}`),
    open: (item) => detail.open(item),
    columns: [
      named("NF"),
      column("state", "state", {
        mood: (item) => (item.get("throttled") ? "warn" : mood("state")(item)),
        text: (item) => (item.get("throttled") ? "throttled" : item.get("state")),
      }),
      column("core", "core", { number: true, wide: true }),
      rate("in/s", "rx_pps"),
      rate("out/s", "tx_pps", { wide: true }),
      column("queue", "queue", { number: true, wide: true, text: (item) => `${short(item.get("queue"))} / ${short(item.get("capacity"))}` }),
      column("CPU", "cpu", { number: true, text: (item) => percent(item.get("cpu")) }),
      times("a packet", "packet_ns", { title: "Median time for a packet over the last 100 ms" }),
      times("p99 of bursts", "burst_p99_ns", { wide: true, title: "99th percentile of the time for a burst" }),
      rate("drops/s", "drop_pps", { wide: true, title: "Packets that its verdict dropped" }),
      column("restarts", "restarts", { number: true, wide: true, mood: (item) => (item.get("restarts") > 0 ? "warn" : "") }),
    ],
  });

  /** A pool as a row among rules, behind all of them. */
  function asRule(pool) {
    const values = {
      position: Infinity,
      port: `per ${pool.get("per")}`,
      chain: `${pool.get("assigned")} of ${pool.get("size")} in use`,
      decisions_ps: pool.get("flows_ps"),
    };
    return { ...pool, key: `pool ${pool.key}`, get: (name) => values[name] ?? null };
  }

  const flows = tablePart({
    title: "Flows",
    items: () => [...itemsOf("rule", (get) => get("chain")), ...itemsOf("pool").map(asRule)],
    columns: [
      column("no.", "position", { number: true, width: "40px", text: (item) => (Number.isFinite(item.get("position")) ? item.get("position") : "") }),
      named("rule or pool"),
      column("port", "port"),
      column("chain", "chain"),
      rate("flows/s", "decisions_ps", { title: "Decisions about flows" }),
      rate("all", "decisions", { wide: true }),
    ],
  });

  const ports = tablePart({
    title: "Ports",
    items: () => itemsOf("port", (get) => get("kind")),
    open: (item) => detail.open(item),
    columns: [
      named("port"),
      column("kind", "kind", { wide: true }),
      column("state", "state", { mood: (item) => (item.get("state") === "up" ? "good" : "bad") }),
      rate("in/s", "rx_pps"),
      rate("out/s", "tx_pps"),
      rate("bit/s in", "rx_bps", { wide: true }),
      rate("bit/s out", "tx_bps", { wide: true }),
      rate("drops/s", "drop_pps", { mood: (item) => (item.get("drop_pps") > 0 ? "warn" : "") }),
    ],
  });

  const slos = tablePart({
    title: "SLOs",
    items: () => itemsOf("slo", (get) => get("state")),
    open: (item) => detail.open(item),
    columns: [
      named("SLO"),
      column("state", "state", { mood: mood("state") }),
      rate("promised/s", "promised_pps", { wide: true }),
      rate("offered/s", "offered_pps"),
      rate("delivered/s", "delivered_pps", { wide: true }),
      column("p95", "latency_us", { number: true, text: (item) => (item.get("latency_us") === null ? NONE : time(item.get("latency_us") * 1000)) }),
      column("promised", "promised_us", { number: true, wide: true, text: (item) => time(item.get("promised_us") * 1000) }),
      column("windows", "windows", { number: true, wide: true }),
      column("violated", "latency_violated", {
        number: true,
        title: "Windows in which throughput or latency was not kept",
        text: (item) => item.get("throughput_violated") + item.get("latency_violated"),
        sort: (item) => item.get("throughput_violated") + item.get("latency_violated"),
      }),
    ],
  });

  const drops = tablePart({
    title: "Drops",
    items: () => itemsOf("drop"),
    columns: [
      named("reason"),
      rate("drops/s", "drop_pps", { mood: (item) => (item.get("drop_pps") > 0 ? "warn" : "") }),
      column("packets", "packets", { number: true, text: (item) => item.get("packets").toLocaleString("en") }),
    ],
  });

  const log = tablePart({
    title: "Events",
    items: () =>
      events.map((event, rank) => {
        const words = `${event.kind} ${event.subject} ${event.what}`;
        return { key: String(event.number), rank, words, get: (name) => event[name] };
      }),
    columns: [
      column("time", "number", { width: "70px", down: true, text: (item) => new Date(item.get("unix_ms")).toLocaleTimeString("en-GB") }),
      column("kind", "kind", { width: "60px", mood: (item) => (item.get("kind") === "death" ? "bad" : "") }),
      column("of", "subject", { width: "minmax(80px, 1fr)" }),
      column("what", "what", { width: "minmax(80px, 4fr)" }),
    ],
  });

  // --- All values of one object ----------------------------------------------------------------

  function written(name, now) {
    if (name.endsWith("_ns")) return time(now);
    if (Array.isArray(now)) return now.join(" → ");
    return typeof now === "number" && name.endsWith("ps") ? short(now) : now ?? NONE;
  }

  const detail = {
    /** Table and key of what is shown. */
    of: null,
    from: null,
    open(item) {
      this.of = { table: item.table, key: item.key };
      this.from = document.activeElement;
      byId("detail").hidden = false;
      this.update();
      byId("detail-name").focus();
    },
    close() {
      if (!this.of) return;
      this.of = null;
      byId("detail").hidden = true;
      if (this.from) this.from.focus();
    },
    update() {
      if (!this.of) return;
      const { table, key } = this.of;
      const row = rowsOf(table).get(key);
      say(byId("detail-name"), row ? `${table} ${key}` : `${table} ${key} is gone`);
      if (!row) return;
      const names = [...tables.get(table).columns.keys()];
      const list = byId("detail-values");
      const all = children(list, names.length * 2, () => make(list.children.length % 2 === 0 ? "dt" : "dd"));
      names.forEach((name, at) => {
        const now = value(table, row, name);
        say(all[at * 2], name);
        say(all[at * 2 + 1], written(name, now));
      });
    },
  };

  // --- The whole -------------------------------------------------------------------------------

  const parts = [chains, cores, nfs, flows, ports, slos, drops, log];
  let shown = 0;

  function show(number, focus) {
    shown = number;
    parts.forEach((part, at) => {
      part.panel.hidden = at !== number;
      part.tab.setAttribute("aria-selected", String(at === number));
      part.tab.tabIndex = at === number ? 0 : -1;
    });
    parts[number].update();
    if (focus) parts[number].tab.focus();
    history.replaceState(null, "", `#${parts[number].title.toLowerCase()}`);
  }

  parts.forEach((part, number) => {
    part.tab = make("button", "", part.title);
    part.tab.type = "button";
    const id = part.title.toLowerCase();
    part.tab.id = `tab-${id}`;
    part.panel.id = `panel-${id}`;
    for (const [name, text] of [["role", "tab"], ["aria-controls", part.panel.id]]) part.tab.setAttribute(name, text);
    for (const [name, text] of [["role", "tabpanel"], ["aria-labelledby", part.tab.id]]) part.panel.setAttribute(name, text);
    part.tab.addEventListener("click", () => show(number, false));
    byId("tabs").append(part.tab);
    byId("panels").append(part.panel);
  });

  byId("tabs").addEventListener("keydown", (event) => {
    const to = { ArrowRight: shown + 1, ArrowLeft: shown - 1, Home: 0, End: parts.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show((to + parts.length) % parts.length, true);
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key === "Escape") {
      if (detail.of) detail.close();
      else if (isTyping) parts[shown].list.element.focus();
      return;
    }
    if (isTyping) {
      if (event.key === "Enter") parts[shown].list.element.focus();
      return;
    }
    if (event.key === "/") {
      event.preventDefault();
      parts[shown].filter.focus();
    } else if (event.key >= "1" && event.key <= String(parts.length) && event.key.length === 1) {
      show(Number(event.key) - 1, true);
    }
  });

  byId("detail-close").addEventListener("click", () => detail.close());

  function head() {
    const daemon = rowsOf("daemon").get("daemon");
    const get = (name) => value("daemon", daemon, name);
    say(byId("verdict"), get("verdict"));
    classed(byId("verdict"), `badge ${get("verdict") === "healthy" ? "good" : "bad"}`);
    const leftOut = get("left_out") > 0 ? `; ${get("left_out")} more are not shown` : "";
    const frames = `${short(get("free_frames"))} of ${short(get("frames"))} frames free`;
    const many = `${rowsOf("nf").size} NFs${leftOut}`;
    say(byId("facts"), `${get("version")}, up ${age(get("uptime_s"))}, ${short(get("flows"))} flows, ${frames}, ${many}`);
    const all = itemsOf("problem");
    const rows = children(byId("problems"), all.length, () => make("li"));
    all.forEach((problem, at) => {
      say(rows[at], `${problem.get("subject")} ${problem.get("what")}, since ${age(problem.get("since_s"))}`);
      classed(rows[at], problem.get("serious") ? "bad" : "warn");
    });
    document.title = `${get("verdict") === "healthy" ? "" : "(!) "}sluiced`;
  }

  function update() {
    sumServices();
    head();
    parts[shown].update();
    detail.update();
    // For tests, and for people with the inspector.
    document.body.dataset.tick = String(tick);
  }

  // --- The stream ------------------------------------------------------------------------------

  let stream = null;
  let again = 0;

  function connect() {
    clearTimeout(again);
    if (stream) stream.close();
    stream = new EventSource("page/events");
    stream.addEventListener("full", (event) => receive(event, setFull));
    stream.addEventListener("delta", (event) => receive(event, setDelta));
    stream.addEventListener("error", () => {
      // The browser connects again by itself unless it was refused.
      if (stream && stream.readyState === EventSource.CLOSED) again = setTimeout(connect, 5000);
    });
  }

  function receive(event, apply) {
    const data = JSON.parse(event.data);
    if (apply === setDelta && (data.tick !== tick + 1 || tables.size === 0)) {
      // A part is missing: the first event of a new stream has everything.
      connect();
      return;
    }
    apply(data);
    tick = data.tick;
    everyMs = data.every_ms;
    lastAt = performance.now();
    update();
    freshness();
  }

  function freshness() {
    const seconds = (performance.now() - lastAt) / 1000;
    const isStale = lastAt === 0 || seconds > (everyMs * 3) / 1000 + 1;
    classed(byId("stream"), isStale ? "stale" : "");
    say(byId("stream"), lastAt === 0 ? "no answer yet" : isStale ? `no answer for ${Math.floor(seconds)} s` : "live");
  }

  setInterval(freshness, 1000);

  // A page in the background costs nothing.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(again);
    if (document.hidden) {
      again = setTimeout(() => {
        if (stream) stream.close();
        stream = null;
      }, 10000);
    } else if (!stream || stream.readyState === EventSource.CLOSED) {
      connect();
    }
  });

  const asked = parts.findIndex((part) => `#${part.title.toLowerCase()}` === location.hash);
  show(asked < 0 ? 0 : asked, false);
  connect();
})();
