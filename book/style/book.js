/* The woven book in a browser: unfolding holes, the stage card, finding names,
   keys. Every page reads well without this file: links then lead to the
   definitions, and all code shows. */
(function () {
"use strict";
var root = document.documentElement;
function one(s, from) { return (from || document).querySelector(s); }
function all(s, from) { return Array.from((from || document).querySelectorAll(s)); }
function script(src, done) {
    var s = document.createElement("script");
    s.src = src; s.onload = function () { done(); };
    s.onerror = function () { done(new Error(src)); };
    document.head.appendChild(s);
}

/* ------------------------------------------------------------- theme */
function dark() {
    var t = root.getAttribute("data-theme");
    return t ? t === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function turn() {
    var t = dark() ? "light" : "dark";
    root.setAttribute("data-theme", t);
    try { localStorage.setItem("book-theme", t); } catch (e) { /* private */ }
}
one("#theme").addEventListener("click", turn);

/* ----------------------------------------------------- unfolding holes */
/* bodies: anchor -> [number, address of the continuation, HTML] */
var bodies = {}, pages = {};
window.bookBodies = function (more) { Object.assign(bodies, more); };
function body(href, use) {              /* href: page.html#anchor or #anchor */
    var at = href.indexOf("#"), id = decodeURIComponent(href.slice(at + 1));
    var page = href.slice(0, at).replace(/\.html$/, "") ||
        document.body.className.replace("page-", "");
    function found() { if (bodies[id]) use(bodies[id], page + ".html#" + id); }
    if (bodies[id]) { found(); return; }
    if (pages[page]) { pages[page].push(found); return; }
    pages[page] = [found];
    script("bodies/" + page + ".js", function (error) {
        if (error) { location.href = href; return; }
        pages[page].forEach(function (f) { f(); });
    });
}
function append(box, href, first) {
    body(href, function (b) {
        if (!first) box.appendChild(document.createTextNode("\n"));
        var part = document.createElement("span");
        part.innerHTML = b[2] || "<i>nothing yet</i>";
        box.appendChild(part);
        ready(part);
        foldable(part, href);
        if (b[1]) append(box, b[1], false);
    });
}
/* The line end behind a hole belongs to the box while it is open. */
function takeLineEnd(hole) {
    var next = hole.nextSibling;
    if (next && next.nodeType === 3 && next.data[0] === "\n") {
        next.data = next.data.slice(1);
        return true;
    }
    return false;
}
function toggle(a) {
    var hole = a.parentNode, box = hole.nextSibling;
    if (box && box.classList && box.classList.contains("unfolded")) {
        var end = box.dataset.end;
        box.remove();
        if (end) hole.after(document.createTextNode("\n"));
        hole.parentNode.normalize();
        a.setAttribute("aria-expanded", "false");
        return;
    }
    var indent = 0, before = hole.previousSibling;
    if (before && before.nodeType === 3)
        indent = before.data.length - before.data.lastIndexOf("\n") - 1;
    box = document.createElement("span");
    box.className = "unfolded";
    box.style.marginLeft = indent + "ch";
    if (takeLineEnd(hole)) box.dataset.end = "1";
    hole.after(box);
    a.setAttribute("aria-expanded", "true");
    append(box, a.getAttribute("href"), true);
}
function ready(within) {
    all(".hole > a.h", within).forEach(function (a) {
        a.setAttribute("role", "button");
        a.setAttribute("aria-expanded", "false");
    });
}
ready(document);
document.addEventListener("click", function (e) {
    var a = e.target.closest && e.target.closest(".hole > a.h");
    if (!a || e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
    e.preventDefault();
    toggle(a);
});

/* ------------------------------------------------------------- stages */
/* A stage is remembered under its key: {view, shown, deadline | left}. The
   pages of one stage share it. Without storage it lasts as long as the page. */
var memory = {};
function recall(key) {
    if (memory[key]) return memory[key];
    try {
        var v = JSON.parse(localStorage.getItem("book-stage-" + key));
        if (v && typeof v === "object" && !Array.isArray(v)) return v;
    } catch (e) { /* private, or not ours */ }
    return {};
}
function change(key, f) {
    var v = recall(key);
    f(v);
    try {
        localStorage.setItem("book-stage-" + key, JSON.stringify(v));
        delete memory[key];
    } catch (e) { memory[key] = v; }
}
function words(s) { return (s || "").split(/\s+/).filter(Boolean); }
var stages = all(".stage").map(function (box) {
    var d = box.dataset;
    return { box: box, key: d.stage, seconds: 60 * Number(d.minutes),
        folds: words(d.folds), blanks: words(d.folds + " " + d.holes) };
});

/* The blank view hides code, and leaves its box at its size: the page does not
   move, and what is hidden is not found. Print ignores the class "folded". */
function stageOf(id) {                  /* the stage that folds it now */
    return stages.filter(function (s) {
        return s.blanks.indexOf(id) >= 0 && recall(s.key).view;
    })[0];
}
function isShown(s, id) {
    var shown = recall(s.key).shown;
    return Array.isArray(shown) && shown.indexOf(id) >= 0;
}
function dress(el) {
    var s = stageOf(el.dataset.blank), shown = s && isShown(s, el.dataset.blank);
    el.classList.toggle("folded", Boolean(s) && !shown);
    el.classList.toggle("opened", Boolean(shown));
    var tag = one(".fold", el);
    tag.disabled = !shown;
    tag.textContent = shown ? "fold" : "blank";
}
function turnBlank(id) {
    var s = stageOf(id);
    if (!s) return;
    change(s.key, function (v) {
        var shown = Array.isArray(v.shown) ? v.shown : [], i = shown.indexOf(id);
        if (i < 0) shown.push(id); else shown.splice(i, 1);
        v.shown = shown;
    });
    refresh();
}
function button(name, text, title) {
    var b = document.createElement("button");
    b.type = "button"; b.className = name; b.textContent = text;
    b.title = title;
    return b;
}
function arm(el, id, where, place) {    /* give a box of code its two buttons */
    var show = button("show", "show this one", "show this blank alone");
    var fold = button("tag fold", "blank", "fold this blank again");
    el.dataset.blank = id;
    [show, fold].forEach(function (b, i) {
        b.addEventListener("click", function () {
            turnBlank(id);
            (i ? show : fold).focus({ preventScroll: true });
        });
    });
    where.appendChild(show);
    place(fold);
    dress(el);
}
/* A hole that unfolds in place keeps the secret too. */
function foldable(part, href) {
    var id = decodeURIComponent(href.slice(href.indexOf("#") + 1));
    if (!stages.some(function (s) { return s.blanks.indexOf(id) >= 0; })) return;
    var code = document.createElement("span");
    code.className = "hidden";
    while (part.firstChild) code.appendChild(part.firstChild);
    part.className = "part";
    part.appendChild(code);
    arm(part, id, part, function (b) { part.insertBefore(b, code); });
}
stages.forEach(function (s) {
    s.folds.forEach(function (id) {
        var box = document.getElementById(id), pre = box && one("pre", box);
        if (!pre || box.dataset.blank) return;
        arm(box, id, pre, function (b) { one(".tag", box).replaceWith(b); });
    });
});

/* The clock is a deadline, so it runs on while the page is closed. */
function isTime(x) { return typeof x === "number" && isFinite(x); }
function left(s) {
    var v = recall(s.key), n = s.seconds;
    if (isTime(v.deadline)) n = (v.deadline - Date.now()) / 1000;
    else if (isTime(v.left)) n = v.left;
    return Math.min(n, s.seconds);
}
function runs(s) { return isTime(recall(s.key).deadline); }
function reading(seconds) {             /* 44:59, 0:00, \u22122:05 */
    var n = Math.ceil(seconds), m = Math.abs(n), rest = m % 60;
    return (n < 0 ? "\u2212" : "") + (m - rest) / 60 + (rest < 10 ? ":0" : ":")
        + rest;
}
function put(el, text) { if (el.textContent !== text) el.textContent = text; }
var title = document.title, timer = 0;
function tick() {
    var now = "", until = 1000;         /* milliseconds to the next reading */
    stages.forEach(function (s) {
        var clock = one(".clock", s.box), n = left(s), text = reading(n);
        if (!clock) return;
        put(clock, text);
        clock.classList.toggle("over", Math.ceil(n) < 0);
        put(one(".go", s.box), runs(s) ? "pause" : n < s.seconds ? "resume"
            : "start");
        if (!runs(s)) return;
        now = now || text;
        until = Math.min(until, 1000 * (n - Math.ceil(n) + 1));
    });
    var wanted = now ? now + " \u00b7 " + title : title;
    if (document.title !== wanted) document.title = wanted;
    clearTimeout(timer);
    if (now) timer = setTimeout(tick, until + 10);
}
function stop(s) {
    var n = left(s);
    change(s.key, function (v) { v.left = n; delete v.deadline; });
}
function go(s) {
    if (runs(s)) {
        stop(s);
    } else {
        stages.filter(runs).forEach(stop);      /* one part at a time */
        var deadline = Date.now() + 1000 * left(s);
        change(s.key, function (v) { v.deadline = deadline; delete v.left; });
    }
    tick();
}
function reset(s) {
    change(s.key, function (v) { delete v.deadline; delete v.left; });
    tick();
}
function refresh() {
    all("[data-blank]").forEach(dress);
    stages.forEach(function (s) {
        var b = one(".view", s.box);
        if (b) b.setAttribute("aria-pressed", String(Boolean(recall(s.key).view)));
    });
    tick();
}
function view(list, yes) {
    list.forEach(function (s) {
        change(s.key, function (v) { v.view = yes; delete v.shown; });
    });
    refresh();
}
function viewKey() {                    /* off if any is on, else on */
    var on = stages.filter(function (s) { return recall(s.key).view; });
    var now = stages.filter(runs);
    if (on.length) view(on, false);
    else view(now.length ? now : stages, true);
}

/* "copied", whichever way worked; if none did, the command is selected */
function copyOld(text) {
    var area = document.createElement("textarea"), good = false;
    var before = document.activeElement;
    area.value = text;
    area.className = "offstage";
    document.body.appendChild(area);
    area.select();
    try { good = document.execCommand("copy"); } catch (e) { /* refused */ }
    area.remove();
    if (before) before.focus({ preventScroll: true });
    return good;
}
function copy(b) {
    var code = one("code", b.parentNode), text = code.textContent;
    function done(good) {
        if (!good) getSelection().selectAllChildren(code);
        b.textContent = good ? "copied" : "selected";
        clearTimeout(b.timer);
        b.timer = setTimeout(function () {
            b.textContent = "copy the command";
        }, 2000);
    }
    b.style.minWidth = b.offsetWidth + "px";
    if (navigator.clipboard && navigator.clipboard.writeText)
        navigator.clipboard.writeText(text).then(function () { done(true); },
            function () { done(copyOld(text)); });
    else done(copyOld(text));
}
stages.forEach(function (s) {
    [[".copy", copy], [".go", function () { go(s); }],
     [".reset", function () { reset(s); }],
     [".view", function () { view([s], !recall(s.key).view); }]]
        .forEach(function (x) {
            var b = one(x[0], s.box);
            if (b) b.addEventListener("click", function () { x[1](b); });
        });
});
addEventListener("storage", refresh);   /* another tab, another page */
refresh();
root.classList.remove("early");

/* ------------------------------------------------------------- find */
var help = one("#help");
var find = one("#find"), found = one("#found"), chosen = -1, loading = false;
var kinds = { s: "section", c: "chunk", i: "name" };
function score(text, words) {
    var t = text.toLowerCase(), n = 0;
    for (var i = 0; i < words.length; i++) {
        var at = t.indexOf(words[i]);
        if (at < 0) return -1;
        n += at === 0 ? 3 : /[^a-z0-9]/.test(t[at - 1]) ? 2 : 1;
    }
    return n + (t === words.join(" ") ? 5 : 0) - t.length / 200;
}
function show(rows) {
    found.textContent = "";
    chosen = -1;
    rows.slice(0, 40).forEach(function (r) {
        var li = document.createElement("li"), a = document.createElement("a");
        li.setAttribute("role", "none");
        a.href = r[2];
        a.setAttribute("role", "option");
        [["k", kinds[r[0]]], ["t", r[1]], ["p", r[3]]].forEach(function (x) {
            var s = document.createElement("span");
            s.className = x[0]; s.textContent = x[1];
            a.appendChild(s);
        });
        li.appendChild(a);
        found.appendChild(li);
    });
    if (!rows.length)
        found.innerHTML = '<li class="none">nothing of that name</li>';
    open(true);
}
function open(yes) {
    found.hidden = !yes;
    find.setAttribute("aria-expanded", yes ? "true" : "false");
}
function search() {
    var words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { open(false); return; }
    if (!window.bookIndex) {
        if (!loading) { loading = true; script("search.js", search); }
        return;
    }
    show(window.bookIndex.map(function (r) { return [score(r[1], words), r]; })
        .filter(function (x) { return x[0] >= 0; })
        .sort(function (a, b) { return b[0] - a[0]; })
        .map(function (x) { return x[1]; }));
}
function choose(step) {
    var list = all("a", found);
    if (!list.length) return;
    if (chosen >= 0) list[chosen].removeAttribute("aria-selected");
    chosen = (chosen + step + list.length) % list.length;
    list[chosen].setAttribute("aria-selected", "true");
    list[chosen].scrollIntoView({ block: "nearest" });
}
find.addEventListener("input", search);
find.addEventListener("focus", search);
find.addEventListener("keydown", function (e) {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        e.preventDefault();
        choose(e.key === "ArrowDown" ? 1 : chosen < 0 ? 0 : -1);
    } else if (e.key === "Enter") {
        var a = all("a", found)[Math.max(chosen, 0)];
        if (a) { open(false); find.blur(); location.href = a.href; }
    } else if (e.key === "Escape") { open(false); find.blur(); }
});
one("button", help).addEventListener("click", function () { help.close(); });
document.addEventListener("click", function (e) {
    if (!e.target.closest(".find") || e.target.closest("#found a")) open(false);
});

/* ------------------------------------------------------------- keys */
one("#keys").addEventListener("click", function () { help.showModal(); });
function chunkNear(step) {
    var list = all(".chunk"), line = 90, i;
    var here = list.indexOf(document.activeElement.closest(".chunk"));
    if (here < 0) {
        for (i = 0; i < list.length; i++)
            if (list[i].getBoundingClientRect().top > line) break;
        here = step > 0 ? i - 1 : i;
    }
    var next = list[here + step];
    if (!next) return;
    next.scrollIntoView({ block: "start" });
    one(".name", next).focus({ preventScroll: true });
}
function turnTo(rel) {
    var a = one("a[rel=" + rel + "]");
    if (a) location.href = a.href;
}
var keys = {
    ArrowLeft: function () { turnTo("prev"); },
    ArrowRight: function () { turnTo("next"); },
    j: function () { chunkNear(1); }, k: function () { chunkNear(-1); },
    o: function () {
        var c = document.activeElement.closest(".chunk");
        if (c && !c.classList.contains("folded"))
            all("pre > code > .hole > a.h", c).forEach(toggle);
    },
    b: viewKey,
    v: function () {
        var el = document.activeElement.closest("[data-blank]");
        if (el) turnBlank(el.dataset.blank);
    },
    s: function () {
        var timed = stages.filter(function (s) { return s.seconds > 0; });
        var s = timed.filter(runs)[0] || timed[0];
        if (s) go(s);
    },
    "/": function () { find.focus(); find.select(); },
    c: function () { location.href = "index.html"; },
    t: turn,
    "?": function () { help.showModal(); }
};
document.addEventListener("keydown", function (e) {
    var at = e.target;
    if (e.ctrlKey || e.metaKey || e.altKey || help.open || !keys[e.key] ||
        at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName))
        return;
    /* an arrow scrolls code that is wider than its box */
    if (e.key.indexOf("Arrow") === 0 && at.closest("pre, .scroll")) return;
    if (e.key === " " || e.key === "Enter") return;
    e.preventDefault();
    keys[e.key]();
});

/* -------------------------------------------------------- where we are */
var links = {};
all(".toc a").forEach(function (a) {
    links[decodeURIComponent(a.hash.slice(1))] = a;
});
var marks = all("main h1[id], main h2[id], main h3[id]");
function mark() {
    var now = marks[0];
    marks.forEach(function (h) {
        if (h.getBoundingClientRect().top < 120) now = h;
    });
    Object.keys(links).forEach(function (id) {
        links[id].classList.toggle("here", now && id === now.id);
    });
}
var waiting = false;
addEventListener("scroll", function () {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(function () { waiting = false; mark(); });
}, { passive: true });
mark();
/* only code that scrolls needs a place in the tab order */
function scrollers() {
    all("main pre").forEach(function (p) {
        if (p.scrollWidth > p.clientWidth) p.setAttribute("tabindex", "0");
        else p.removeAttribute("tabindex");
    });
}
scrollers();
addEventListener("resize", scrollers, { passive: true });
addEventListener("beforeprint", function () {
    all("details").forEach(function (d) { d.open = true; });
});
})();
