/* The woven pages, driven in a browser. check.sh opens pages.html from the disk
   and reads the verdict out of the document; a person may open it as well, in a
   browser that lets a file read its neighbours.

   What a page should fold is read from the chapter's own text, not from the
   page: this file and the weaver must agree, and neither asks the other. */
"use strict";

/* ------------------------------------------------------------ the harness */
const BOOK = "../../book/", PAGES = "../../build/html/";
const FIXTURE = "./", PARTS = "../../build/pages/html/";
const out = document.getElementById("results");
let passed = 0, failed = 0;

function say(line) { out.append(line + "\n"); }
function ok(value, what) { if (!value) throw new Error(what); }
function is(a, b, what) {
    a = JSON.stringify(a); b = JSON.stringify(b);
    if (a !== b) throw new Error(what + ": " + a + " instead of " + b);
}
async function test(name, f) {
    localStorage.clear();
    try {
        await f();
        passed++;
    } catch (e) {
        failed++;
        say("FAILED: " + name + ": " + e.message);
    }
    localStorage.clear();
    document.getElementById("stage").textContent = "";
}
function sleep(ms) { return new Promise(r => setTimeout(r, ms)); }
async function until(f, what) {
    for (let i = 0; i < 200; i++) {
        if (f()) return;
        await sleep(25);
    }
    throw new Error("never: " + what);
}
function read(url) {
    return new Promise((resolve, reject) => {
        const r = new XMLHttpRequest();
        r.open("GET", url);
        r.onload = () => resolve(r.responseText);
        r.onerror = () => reject(new Error("cannot read " + url));
        r.send();
    });
}

/* A page in a frame. Options: width; sandbox, which turns scripts off; before, a
   script that runs in the page first; without, a script of the page to leave
   out. The last two need a copy of the page's text. */
async function load(url, options = {}) {
    const frame = document.createElement("iframe");
    frame.style.width = (options.width || 1280) + "px";
    frame.style.height = "900px";
    if (options.sandbox) frame.setAttribute("sandbox", options.sandbox);
    if (options.before || options.without) {
        const base = new URL(url, location.href).href;
        let text = await read(url);
        if (options.without)
            text = text.replace('<script src="' + options.without +
                '" defer></script>', "");
        frame.srcdoc = text.replace("<head>", '<head><base href="' + base +
            '"><script>' + (options.before || "") + "</scr" + "ipt>");
    } else {
        frame.src = url;
    }
    await new Promise(r => {
        frame.onload = r;
        document.getElementById("stage").append(frame);
    });
    return wrap(frame);
}
function wrap(frame) {
    const w = frame.contentWindow, d = frame.contentDocument;
    const p = {
        w, d, frame, errors: [],
        one: (s, from) => (from || d).querySelector(s),
        all: (s, from) => [...(from || d).querySelectorAll(s)],
        press: (key, at) => (at || d.activeElement || d.body).dispatchEvent(
            new w.KeyboardEvent("keydown", { key, bubbles: true,
                cancelable: true })),
        reload: async () => {
            await new Promise(r => { frame.onload = r; w.location.reload(); });
            return wrap(frame);
        },
        box: id => d.getElementById(id),
        clock: n => p.all(".clock")[n || 0].textContent,
    };
    w.addEventListener("error", e => p.errors.push(e.message));
    return p;
}
function shows(p, el) {
    return el.getClientRects().length > 0 &&
        p.w.getComputedStyle(el).visibility === "visible";
}
function folded(p) { return p.all(".chunk.folded").map(c => c.id); }
/* the text that a reader can see, button labels left out */
function visible(el) {
    return el.innerText.replace(/show this one|fold/g, "").trim();
}

/* ------------------------------------------------------ a chapter's source */
/* the lists of the front matter, of parts as well; scalars and mappings */
function frontMatter(text) {
    const m = /^---\n([^]*?)\n---\n/.exec(text);
    const blanks = [], swaps = [];
    let list = "", swap = null;
    for (const line of m ? m[1].split("\n") : []) {
        const key = /^(?:    )?([a-z]+):\s*$/.exec(line);
        if (key) { list = key[1]; continue; }
        if (/^[a-z]+:/.test(line)) { list = ""; continue; }
        const item = /^ *- \{chunk: ([^,}]*)/.exec(line) ||
            /^ *- (?:chunk: )?(.*)/.exec(line);
        const by = /^ *by: (.*)/.exec(line);
        if (/^ *- part:/.test(line)) continue;
        if (list === "blanks" && item) blanks.push(item[1].replace(/"/g, ""));
        if (list === "supersedes" && item)
            swaps.push(swap = { chunk: item[1], by: null });
        if (list === "supersedes" && by) swap.by = by[1];
    }
    return { blanks, swaps };
}
/* name -> the bodies that this text gives it */
function chunks(text) {
    const all = {};
    let body = null;
    for (const line of text.split("\n")) {
        const m = /^<<(.*)>>=$/.exec(line);
        if (m) (all[m[1]] = all[m[1]] || []).push(body = []);
        else if (/^@( |$)/.test(line)) body = null;
        else if (body) body.push(line.replace(/@<</g, "<<"));
    }
    return all;
}
async function sources(where, slugs) {
    const list = [], swaps = [];
    for (const slug of slugs) {
        const text = await read(where + slug + ".nw"), f = frontMatter(text);
        swaps.push(...f.swaps);
        const here = chunks(text), bodies = {};
        for (const name of new Set(f.blanks)) {
            let by = name;
            for (const s of swaps)
                if (s.chunk === name || s.chunk === by) by = s.by;
            bodies[name] = by;
        }
        list.push({ slug, blanks: f.blanks, bodies, here });
    }
    for (const s of list)
        s.elsewhere = telling(list.filter(o => o !== s)
            .flatMap(o => Object.values(o.here).flat()));
    return list;
}
/* lines that carry something: not a brace, not a hole */
function telling(bodies) {
    return bodies.flat().map(s => s.trim())
        .filter(s => s.length > 6 && !s.startsWith("<<"));
}
function plain(name) { return name.replace(/\[\[|\]\]/g, ""); }
function nameOf(p, box) {
    return p.one(".name", box).textContent.replace(/[⟨⟩]/g, "");
}

/* ------------------------------------------------------- for each chapter */
async function chapterTests(where, s) {
    const url = where + s.slug + ".html", lines = {};
    const bodies = [...new Set(Object.values(s.bodies))]
        .filter(b => s.here[b]);
    for (const b of bodies) lines[plain(b)] = telling(s.here[b]);

    await test(s.slug + ": the card lists the blanks", async () => {
        const p = await load(url), links = p.all(".card dd li a");
        is(links.map(a => a.textContent.replace(/[⟨⟩]/g, "")
            .replace(/\s+/g, " ").replace(/’/g, "'")), s.blanks.map(plain),
            "names");
        links.forEach((a, i) => is(
            nameOf(p, p.box(decodeURIComponent(a.hash.slice(1)))),
            plain(s.bodies[s.blanks[i]]), "the link's chunk"));
        is(folded(p), [], "folded at first");
    });

    await test(s.slug + ": exactly the listed chunks fold", async () => {
        const p = await load(url);
        p.all(".view").forEach(b => b.click());
        const boxes = p.all(".chunk.folded");
        is(new Set(boxes.map(b => nameOf(p, b))).size, bodies.length, "names");
        is(boxes.length, bodies.reduce((n, b) => n + s.here[b].length, 0),
            "boxes");
        for (const box of boxes) {
            const name = nameOf(p, box), text = visible(box);
            ok(lines[name], "folded and not listed: " + name);
            for (const line of lines[name])
                ok(!text.includes(line), "seen: " + line);
            ok(shows(p, p.one(".name", box)), "the name stays");
        }
        p.all(".view").forEach(b => b.click());
        is(folded(p), [], "folded after all");
        for (const box of boxes)
            ok(shows(p, p.one("pre > code", box)), "code is back");
        is(p.errors, [], "errors");
    });

    await test(s.slug + ": nothing on the page moves", async () => {
        for (const width of [1280, 390]) {
            const p = await load(url, { width });
            const place = () => p.all(".chunk, h2, .ends").map(
                e => Math.round(e.getBoundingClientRect().top));
            const before = place();
            p.press("b");
            ok(folded(p).length > 0, "folded");
            is(place(), before, "places at " + width);
            ok(p.d.documentElement.scrollWidth <= width, "no wider: " + width);
            p.press("b");
            is(place(), before, "places afterwards at " + width);
        }
    });

    await test(s.slug + ": the browser's find does not see folded code",
        async () => {
            const p = await load(url), text = p.one("main").textContent;
            const line = Object.values(lines).flat().find(
                l => text.split(l).length === 2);
            if (!line) return;
            const seen = () => {
                p.w.getSelection().removeAllRanges();
                return p.w.find(line, true, false, true);
            };
            ok(seen(), "found: " + line);
            p.press("b");
            ok(!seen(), "not found: " + line);
        });

    await test(s.slug + ": holes that unfold keep it folded", async () => {
        const p = await load(url);
        p.press("b");
        for (let round = 0; round < 4; round++) {
            p.all('.hole > a.h[aria-expanded="false"]').forEach(a => {
                if (shows(p, a)) a.click();
            });
            await sleep(60);
        }
        const parts = p.all(".part");
        for (const part of parts) {
            const name = p.box(part.dataset.blank) &&
                nameOf(p, p.box(part.dataset.blank));
            is(visible(part), "", "a part of " + name);
        }
        /* a line may also stand in a chunk that is no blank, or on another
           page, whose chunks unfold here */
        const open = telling(Object.keys(s.here).filter(
            n => !bodies.includes(n)).flatMap(n => s.here[n]));
        const secrets = Object.values(lines).flat().filter(
            line => !open.includes(line) && !s.elsewhere.includes(line));
        for (const box of p.all(".unfolded"))
            for (const line of box.innerText.split("\n"))
                ok(!secrets.includes(line.trim()), "leaks: " + line);
        if (parts.length) {
            p.press("b");
            for (const part of parts)
                ok(part.innerText.trim().length > 0, "back in place");
        }
    });

    await test(s.slug + ": one blank opens alone and closes again", async () => {
        const p = await load(url);
        p.press("b");
        const all = folded(p), box = p.box(all[0]);
        p.one("pre > .show", box).click();
        is(folded(p), all.slice(1), "the others stay");
        ok(shows(p, p.one("pre > code", box)), "its code shows");
        ok(p.d.activeElement === p.one(".fold", box), "focus goes along");
        const again = await p.reload();
        is(folded(again), all.slice(1), "remembered");
        again.one(".fold", again.box(all[0])).click();
        is(folded(again), all, "all again");
        ok(again.d.activeElement === again.one(".show", again.box(all[0])),
            "focus comes back");
    });

    await test(s.slug + ": the view is remembered, and on before the script",
        async () => {
            let p = await load(url);
            p.press("b");
            const all = folded(p);
            p = await p.reload();
            is(folded(p), all, "after a reload");
            ok(p.all(".view").every(
                b => b.getAttribute("aria-pressed") === "true"), "pressed");
            p = await load(url, { without: "book.js" });
            all.forEach(id => ok(!shows(p, p.one("pre > code", p.box(id))),
                "shows at first: " + id));
        });

    await test(s.slug + ": without JavaScript all shows", async () => {
        const on = await load(url);
        on.press("b");
        const all = folded(on);
        const p = await load(url, { sandbox: "allow-same-origin" });
        is(p.all(".folded").length, 0, "folded");
        all.forEach(id => ok(shows(p, p.one("pre > code", p.box(id))), id));
        ok(p.all(".controls, .copy").every(e => !shows(p, e)), "no buttons");
        ok(p.one(".card").innerText.includes("make blank-"), "the command");
    });
}

/* --------------------------------------------------------- the stage card */
const STAGE = PAGES + "05-mask.html", KEY = "book-stage-5";
function stored() { return JSON.parse(localStorage.getItem(KEY)) || {}; }
function click(p, name, n) { p.all(name)[n || 0].click(); }

async function clockTests() {
    await test("the clock counts down, in the title too", async () => {
        const p = await load(STAGE), title = p.d.title;
        is(p.clock(), "45:00", "at first");
        is(p.one(".go").textContent, "start", "label");
        click(p, ".go");
        await sleep(3100);
        is(p.clock(), "44:57", "after three seconds");
        is(p.d.title, "44:57 · " + title, "title");
        is(p.one(".go").textContent, "pause", "label");
        click(p, ".go");
        await sleep(5000);
        is(p.clock(), "44:57", "paused");
        is(p.d.title, title, "title of a paused clock");
        is(p.one(".go").textContent, "resume", "label");
        click(p, ".go");
        await sleep(2000);
        ok(/^44:5[45]$/.test(p.clock()), "goes on: " + p.clock());
        click(p, ".reset");
        await sleep(1500);
        is(p.clock(), "45:00", "reset");
        is(p.d.title, title, "title");
        is(p.errors, [], "errors");
    });
    await test("the clock survives a reload", async () => {
        let p = await load(STAGE);
        click(p, ".go");
        await sleep(2000);
        p.frame.src = "about:blank";
        await sleep(8000);
        p = await load(STAGE);
        ok(/^44:(50|49)$/.test(p.clock()), "the time away counts: " + p.clock());
        click(p, ".go");
        const at = p.clock();
        await sleep(3000);
        p = await p.reload();
        is(p.clock(), at, "paused across a reload");
        is(p.one(".go").textContent, "resume", "label");
    });
    await test("the clock goes below zero", async () => {
        localStorage.setItem(KEY, JSON.stringify(
            { deadline: Date.now() - 125000 }));
        const p = await load(STAGE);
        ok(/^−2:0[45]$/.test(p.clock()), p.clock());
        ok(p.one(".clock").classList.contains("over"), "marked");
        await sleep(1000);
        ok(/^−2:0[56]$/.test(p.clock()), "goes on: " + p.clock());
        ok(p.d.title.startsWith("−2:0"), "title: " + p.d.title);
        localStorage.setItem(KEY, JSON.stringify(
            { deadline: Date.now() + 1500 }));
        p.w.dispatchEvent(new p.w.Event("storage"));
        await sleep(400);
        is(p.clock(), "0:02", "two seconds are left");
        await sleep(3000);
        is(p.clock(), "−0:01", "and then it is over");
    });
    await test("the clock is quiet", async () => {
        const p = await load(STAGE);
        is(p.one(".clock").getAttribute("role"), "timer", "role");
        is(p.all(".card [aria-live], .card audio").length, 0, "live regions");
        ok(parseFloat(p.w.getComputedStyle(p.one(".clock")).fontSize) >= 32,
            "big enough to read");
    });
    await test("what is stored may be anything", async () => {
        for (const junk of ["", "x", "7", "null", "[]", '"a"', '{"deadline":"x"}',
            '{"left":null,"shown":7,"view":"yes"}', '{"deadline":1e400}']) {
            localStorage.setItem(KEY, junk);
            const p = await load(STAGE);
            is(p.clock(), "45:00", "clock with " + junk);
            p.press("b");
            p.press("s");
            await sleep(100);
            is(p.errors, [], "errors with " + junk);
            ok(isFinite(stored().deadline), "the clock starts with " + junk);
        }
    });
    await test("a clock that was set back never shows more than the budget",
        async () => {
            localStorage.setItem(KEY, JSON.stringify(
                { deadline: Date.now() + 86400000 }));
            is((await load(STAGE)).clock(), "45:00", "clamped");
        });
    await test("two windows agree", async () => {
        const a = await load(STAGE), b = await load(STAGE);
        a.press("b");
        a.press("s");
        await until(() => folded(b).length > 0, "folds in the other");
        await until(() => b.one(".go").textContent === "pause", "runs there");
    });
}

async function copyTests() {
    const commands = { "05-mask": "make blank-5", "03-training": "make blank-3",
        "03b-backward": "make blank-3" };
    await test("the command is copied", async () => {
        for (const slug in commands) {
            const p = await load(PAGES + slug + ".html"), b = p.one(".copy");
            let got = "";
            Object.defineProperty(p.w.navigator, "clipboard", { value: {
                writeText: t => { got = t; return Promise.resolve(); } } });
            const width = b.offsetWidth, height = p.one(".card").offsetHeight;
            b.click();
            await until(() => b.textContent === "copied", "says so");
            is(got, commands[slug], "text");
            is(b.offsetWidth, width, "the button's width");
            is(p.one(".card").offsetHeight, height, "the card's height");
            await sleep(2100);
            is(b.textContent, "copy the command", "and is itself again");
        }
    });
    await test("a clipboard that refuses has a stand-in", async () => {
        for (const clipboard of [undefined,
            { writeText: () => Promise.reject(new Error("no")) }]) {
            const p = await load(STAGE), b = p.one(".copy");
            let got = "";
            Object.defineProperty(p.w.navigator, "clipboard",
                { value: clipboard });
            p.d.execCommand = what => {
                got = what + " " + p.d.activeElement.value;
                return true;
            };
            b.focus();
            b.click();
            await until(() => b.textContent === "copied", "says so");
            is(got, "copy make blank-5", "the old way");
            ok(p.d.activeElement === b, "focus is back");
            is(p.all("textarea").length, 0, "cleaned up");
        }
    });
    await test("if nothing copies, the command is selected", async () => {
        for (const old of [() => false, () => { throw new Error("no"); }]) {
            const p = await load(STAGE), b = p.one(".copy");
            Object.defineProperty(p.w.navigator, "clipboard",
                { value: undefined });
            p.d.execCommand = old;
            b.click();
            await until(() => b.textContent === "selected", "says so");
            is(String(p.w.getSelection()), "make blank-5", "selection");
            is(p.all("textarea").length, 0, "cleaned up");
        }
    });
}

async function keyTests() {
    await test("keys: b, v and s", async () => {
        const p = await load(STAGE);
        p.press("b");
        const all = folded(p);
        ok(all.length > 0, "b folds");
        p.press("v");
        is(folded(p), all, "v without a blank in focus does nothing");
        p.one(".name", p.box(all[0])).focus();
        p.press("v");
        is(folded(p), all.slice(1), "v shows");
        p.press("v");
        is(folded(p), all, "v folds");
        p.press("b");
        is(folded(p), [], "b unfolds");
        p.press("s");
        is(p.one(".go").textContent, "pause", "s starts");
        p.press("s");
        is(p.one(".go").textContent, "start", "s pauses at once");
    });
    await test("keys leave the search box alone", async () => {
        const p = await load(STAGE);
        p.one("#find").focus();
        "bvs".split("").forEach(k => p.press(k));
        is(folded(p), [], "nothing folds");
        is(p.one(".go").textContent, "start", "nothing starts");
    });
    await test("keys are listed where they work", async () => {
        const list = p => p.all("#help kbd").map(k => k.textContent);
        const p = await load(STAGE), other = await load(PAGES + "index.html");
        "bvs".split("").forEach(k => ok(list(p).includes(k), k));
        ok(!list(other).includes("b"), "not on the contents");
        other.press("b");
        other.press("s");
        is(other.errors, [], "errors");
    });
    await test("every control is reached by keyboard, with visible focus",
        async () => {
            const p = await load(STAGE);
            p.press("b");
            const controls = p.all(".copy, .go, .reset, .view, .folded .show");
            ok(controls.length >= 9, "controls");
            for (const c of controls) {
                c.focus();
                ok(p.d.activeElement === c, "focus on " + c.className);
                ok(c.tabIndex === 0 && c.tagName === "BUTTON", "in the order");
                ok(c.matches(":focus-visible"), "visible");
                is(p.w.getComputedStyle(c).outlineStyle, "solid", "outline");
            }
            ok(p.all(".folded a, .folded button").filter(
                a => a.closest("pre > code") && shows(p, a)).length === 0,
                "no link inside folded code");
        });
    await test("o does not unfold what is folded", async () => {
        const p = await load(PAGES + "02-forward.html");
        p.press("b");
        const box = p.all(".chunk.folded").find(c => p.one(".hole", c));
        p.one(".name", box).focus();
        p.press("o");
        await sleep(100);
        is(p.all(".unfolded", box).length, 0, "unfolded");
    });
}

async function storageTests() {
    for (const [what, before] of [
        ["refused", 'Object.defineProperty(window, "localStorage", ' +
            '{ get: function () { throw new Error("no storage"); } });'],
        ["missing", 'Object.defineProperty(window, "localStorage", ' +
            "{ value: undefined });"],
        ["full", 'Storage.prototype.setItem = function () ' +
            '{ throw new Error("full"); };']])
        await test("storage " + what + ": all works until the page is left",
            async () => {
                const p = await load(STAGE, { before });
                is(p.clock(), "45:00", "clock");
                click(p, ".view");
                const all = folded(p);
                ok(all.length > 0, "folds");
                p.one(".show", p.box(all[0])).click();
                is(folded(p), all.slice(1), "shows one");
                click(p, ".go");
                await sleep(2100);
                is(p.clock(), "44:58", "runs");
                click(p, ".view");
                is(folded(p), [], "unfolds");
                is(p.clock(), "44:58", "and the clock stays");
                is(p.errors, [], "errors");
            });
}

/* Chapters 3 and 3b are two pages of one stage. */
async function twoPageTests() {
    await test("two pages share a stage, and each folds its own", async () => {
        let a = await load(PAGES + "03-training.html");
        let b = await load(PAGES + "03b-backward.html");
        is([a, b].map(p => p.one(".stage").dataset.stage), ["3", "3"], "stage");
        ok(/Stage\s+3\b/.test(b.one(".card").innerText), "3b says stage 3");
        ok(b.one('.card a[href^="03-training.html"]'), "and leads to it");
        is(b.clock(), a.clock(), "one budget");
        click(a, ".go");
        click(a, ".view");
        const all = folded(a);
        await until(() => folded(b).length > 0, "the other page folds too");
        b = await b.reload();
        is(b.one(".go").textContent, "pause", "one clock");
        ok(folded(b).every(id => !all.includes(id)), "its own chunks");
    });
}

/* --------------------------------------------------------------- the parts */
async function partTests() {
    const url = PARTS + "10-parts.html";
    const ids = {
        "10.1": ["chunk:store-a-prefix", "chunk:store-a-prefix-2",
            "chunk:find-a-prefix"],
        "10.2": ["chunk:find-a-prefix", "chunk:drop-the-oldest-prefix"],
        "10.3": ["chunk:count-up-to-the-length-that-the-store-knows"],
        "10.4": ["chunk:run-what-the-store-lacks"] };
    await test("parts: one card, four stages", async () => {
        const p = await load(url);
        is(p.all(".card").length, 1, "cards");
        is(p.all(".stage").map(s => s.dataset.stage), Object.keys(ids), "keys");
        is(p.all(".clock").map(c => c.textContent),
            ["15:00", "15:00", "20:00", "10:00"], "budgets");
        is(p.all(".stage").map(s => /make blank-[0-9.]+/.exec(s.innerText)[0]),
            Object.keys(ids).map(k => "make blank-" + k), "commands");
        ok(p.one(".stage").innerText.includes("10.1, the store"), "title");
        ok(p.one(".stage").innerText.includes("a prefix that was stored"),
            "stop");
    });
    await test("parts: each folds its own chunks", async () => {
        const p = await load(url);
        Object.keys(ids).forEach((k, i) => {
            click(p, ".view", i);
            is(folded(p).sort(), ids[k].slice().sort(), k);
            click(p, ".view", i);
        });
        click(p, ".view", 0);
        click(p, ".view", 1);
        is(folded(p).length, 4, "two parts together");
        click(p, ".view", 0);
        is(folded(p).sort(), ids["10.2"].slice().sort(), "one of them again");
    });
    await test("parts: b folds the part whose clock runs, or all", async () => {
        const p = await load(url);
        p.press("b");
        is(folded(p).length, 6, "all");
        p.press("b");
        is(folded(p), [], "none");
        click(p, ".go", 2);
        p.press("b");
        is(folded(p), ids["10.3"], "the running one");
    });
    await test("parts: one clock at a time", async () => {
        const p = await load(url);
        click(p, ".go", 0);
        await sleep(2000);
        click(p, ".go", 3);
        await sleep(3000);
        ok(/^14:5[78]$/.test(p.clock(0)), "the first waits: " + p.clock(0));
        ok(/^9:5[678]$/.test(p.clock(3)), "the last runs: " + p.clock(3));
        ok(p.d.title.startsWith(p.clock(3)), "title: " + p.d.title);
        p.press("s");
        is(p.all(".go")[3].textContent, "resume", "s stops what runs");
    });
    await test("parts: a hole that bears a superseded name", async () => {
        const p = await load(url);
        const box = p.box("chunk:store-c");
        const hole = p.all(".hole > a.h", box).find(
            a => a.textContent === "count the tokens of the prefix");
        click(p, ".view", 2);
        hole.click();
        await until(() => p.one(".part", box), "unfolds");
        ok(!box.innerText.includes("FIXTURE_MARK"), "nothing of chapter 9");
        p.one(".part .show", box).click();
        ok(box.innerText.includes("FIXTURE_MARK"), "shown");
        is(folded(p), ids["10.3"], "the box stays folded");
        p.one(".part .fold", box).click();
        ok(!box.innerText.includes("FIXTURE_MARK"), "folded again");
        click(p, ".view", 2);
        ok(box.innerText.includes("FIXTURE_MARK"), "all shows");
    });
    await test("parts: a hole that was open before the view", async () => {
        const p = await load(url), box = p.box("chunk:store-c");
        p.one(".name", box).focus();
        p.press("o");
        await until(() => p.all(".part", box).length >= 4, "unfolds");
        ok(box.innerText.includes("FIXTURE_STORE_CONTINUED"), "open");
        p.press("b");
        ok(!box.innerText.includes("FIXTURE"), "folded: " + box.innerText);
        p.press("b");
        ok(box.innerText.includes("FIXTURE_DROP"), "open again");
    });
}

/* -------------------------------------------------------------------- main */
async function main() {
    const index = await read(PAGES + "index.html");
    const slugs = [...index.matchAll(/href="([0-9A-Z][^"]*)\.html"/g)]
        .map(m => m[1]).filter((s, i, all) => all.indexOf(s) === i);
    const book = await sources(BOOK, slugs);
    const parts = await sources(FIXTURE, ["09-before", "10-parts"]);
    for (const s of book.filter(s => s.blanks.length))
        await chapterTests(PAGES, s);
    for (const s of parts) await chapterTests(PARTS, s);
    await clockTests();
    await copyTests();
    await keyTests();
    await storageTests();
    await twoPageTests();
    await partTests();
}
main().catch(e => { failed++; say("FAILED: " + e.message); })
    .then(() => say("pages: " + passed + " passed, " + failed + " failed"));
