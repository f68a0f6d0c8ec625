# The rungs of 21-ladder.json, one a line: place, ladder, percent of the
# limit, rate, unit, name; a place is left free between two ladders.
/"unit"/ { match($0, /"unit": "[^"]*"/); unit = substr($0, RSTART + 9, RLENGTH - 10); y += ladder > 0; ladder++ }
/"rung"/ { match($0, /"rung": "[^"]*"/); name = substr($0, RSTART + 9, RLENGTH - 10);
  match($0, /"rate": [0-9.]*/); rate = substr($0, RSTART + 8, RLENGTH - 8);
  match($0, /"fraction": [0-9.]*/); part = substr($0, RSTART + 12, RLENGTH - 12);
  print y++, ladder, 100 * part, rate, unit, "\"" name "\"" }
