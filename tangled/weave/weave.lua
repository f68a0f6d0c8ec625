-- weave.lua: pandoc filter for the pages that weave writes.
local html = FORMAT:match 'html' ~= nil
local page = ''

local function tex(s) return pandoc.RawInline('latex', s) end
local function block(s)
  return pandoc.RawBlock(html and 'html' or 'latex', s)
end

local tex_escapes = {
  ['\\'] = '\\textbackslash{}', ['{'] = '\\{', ['}'] = '\\}',
  ['$'] = '\\$', ['&'] = '\\&', ['#'] = '\\#', ['%'] = '\\%',
  ['_'] = '\\_', ['^'] = '\\textasciicircum{}',
  ['~'] = '\\textasciitilde{}',
}
local function escape(s) return (s:gsub('[\\{}$&#%%_^~]', tex_escapes)) end

local function wrap(before, inlines, after)
  local r = pandoc.List { tex(before) }
  r:extend(inlines)
  r:insert(tex(after))
  return r
end
local function tex_id(id, where)
  return id:find(':', 1, true) and id or where .. ':' .. id
end

function header(h)
  if html then return end
  h.identifier = tex_id(h.identifier, page)
  return h
end

function link(l)
  local where, id = l.target:match '^([%w_-]*)%.?h?t?m?l?#(.+)$'
  if not where or l.target:match '^%a+://' then return end
  if html then
    if where == page then l.target = '#' .. id end
    return l
  end
  if where == '' then where = page end
  local after = '}'
  local chunk = l.classes:includes 'chunkref'
  if chunk or (where ~= page and id:match '^%a+:' and not id:match '^id:'
               and not l.classes:includes 'idref') then
    after = '}\\nwpage{' .. tex_id(id, where) .. '}'
  end
  return wrap('\\hyperlink{' .. tex_id(id, where) .. '}{'
              .. (chunk and '\\nwname{' or ''), l.content,
              (chunk and '}' or '') .. after)
end
function code(c)
  if html then return end
  local s = escape(c.text):gsub('(\\_)', '%1\\nwjoint{}')
    :gsub('([/.,(=])', '%1\\nwjoint{}')
  return tex('\\texttt{' .. s .. '}')
end

function span(s)
  if html then return end
  if s.classes:includes 'figno' then
    return wrap('\\nwfigno{', s.content, '}')
  elseif s.classes:includes 'chunkname' then
    return wrap('\\nwname{', s.content, '}')
  end
end
function code_block(b)
  if html then return end
  local t, columns = {}, 0
  for l in (b.text .. '\n'):gmatch '(.-)\n' do
    columns = math.max(columns, utf8.len(l) or #l)
    t[#t + 1] = '\\CL{' .. escape(l):gsub(' ', '~') .. '}'
  end
  return block('\\begin{nwcode}{' .. columns .. '}\n' .. table.concat(t, '\n')
               .. '\n\\end{nwcode}')
end
local function figure(d)
  local image = d.content[1].content[1]
  local caption = d.content[2] and d.content[2].content or pandoc.List {}
  if not html then
    local path = image.src:gsub('^fig/(.*)%.svg$', 'build/weave/fig/%1.pdf')
    return { pandoc.Plain(wrap('\\nwfigure{' .. d.identifier .. '}{' .. path
                               .. '}{', caption, '}')) }
  end
  local alt = pandoc.utils.stringify(caption):gsub('[&"<]',
    { ['&'] = '&amp;', ['"'] = '&quot;', ['<'] = '&lt;' })
  return { block('<figure id="' .. d.identifier .. '"><img src="' .. image.src
                 .. '" alt="' .. alt .. '">\n<figcaption>'),
           pandoc.Plain(caption), block('</figcaption></figure>') }
end
local environments = {
  probe = 'nwprobe', answer = 'nwanswer', note = 'nwnote',
  ledger = 'nwledger', card = 'nwcard', purpose = 'nwpurpose',
  tests = 'nwtests', wrong = 'nwtests', ['chapter-map'] = 'nwledger',
  form = 'nwform',
}

function div(d)
  local class = d.classes[1]
  if class == 'figure' then return figure(d) end
  if class == 'form' and html then return {} end
  if class == 'answer' and html then
    local r = pandoc.List {
      block '<details class="answer"><summary>Answer</summary>' }
    r:extend(d.content)
    r:insert(block '</details>')
    return r
  end
  if html or not environments[class] then return end
  if class == 'answer' and d.content[1].t == 'Para' then
    d.content[1].content:insert(1, tex '\\textit{Answer.}\\ ')
  end
  local r = pandoc.List { block('\\begin{' .. environments[class] .. '}') }
  r:extend(d.content)
  r:insert(block('\\end{' .. environments[class] .. '}'))
  return r
end
local LINE = 92   -- characters of small type across the page

local function longest(text)
  local word, all = 0, utf8.len(text) or #text
  for w in text:gmatch '[^%s_/]+' do
    word = math.max(word, utf8.len(w) or #w)
  end
  return word + 2, all + 2
end

local function measure(t)
  local words, cells = {}, {}
  local function row(cs)
    for i, c in ipairs(cs) do
      local w, a = longest(pandoc.utils.stringify(pandoc.Div(c)))
      words[i] = math.max(words[i] or 3, w)
      cells[i] = math.max(cells[i] or 3, a)
    end
  end
  row(t.headers)
  for _, r in ipairs(t.rows) do row(r) end
  return words, cells
end
local function sum(t)
  local n = 0
  for _, v in ipairs(t) do n = n + v end
  return n
end

local function fit(words, cells)
  local widths, spare = {}, math.max(LINE - sum(words), 0)
  local wish = {}
  for i, w in ipairs(words) do
    wish[i] = math.sqrt(cells[i]) * (cells[i] - w)
  end
  for i, w in ipairs(words) do
    widths[i] = w + spare * wish[i] / math.max(sum(wish), 1)
  end
  local scale = math.max(sum(widths), LINE)
  for i, w in ipairs(widths) do widths[i] = 0.99 * w / scale end
  return widths
end
function table_block(t)
  local simple = pandoc.utils.to_simple_table(t)
  local words, cells = measure(simple)
  local small = html or sum(cells) <= LINE
  for i = 1, #simple.widths do simple.widths[i] = 0 end
  if not small then simple.widths = fit(words, cells) end
  t = pandoc.utils.from_simple_table(simple)
  if not html then return t end
  return { block '<div class="scroll">', t, block '</div>' }
end
local tall = { 'mfrac', 'munder', 'mover', 'mtable', 'msqrt' }

function formula(m)
  if not html then return end
  m.text = m.text:gsub('\\[bB]igg?l%f[^%a]', '\\left')
    :gsub('\\[bB]igg?r%f[^%a]', '\\right'):gsub('\\[bB]igg?%f[^%a]', '')
  local doc = pandoc.Pandoc { pandoc.Plain { m } }
  local s = pandoc.write(doc, 'html5',
    pandoc.WriterOptions { html_math_method = 'mathml' })
  s = s:gsub('<annotation.-</annotation>', ''):gsub('</?semantics>', '')
  local stretch = false
  for _, tag in ipairs(tall) do
    stretch = stretch or s:find('<' .. tag, 1, true) ~= nil
  end
  if m.mathtype == 'InlineMath' or not stretch then
    s = s:gsub('stretchy="true"', 'stretchy="false"')
  end
  if m.mathtype == 'DisplayMath' then
    s = '<span class="display">' .. s .. '</span>'
  elseif #m.text > 20 then
    s = '<span class="formula">' .. s .. '</span>'
  end
  return pandoc.RawInline('html', s)
end

return {
  { Meta = function(m) page = pandoc.utils.stringify(m.page or '') end },
  { Div = div, Table = table_block },
  { CodeBlock = code_block, Header = header, Link = link, Code = code,
    Span = span, Math = formula },
}
