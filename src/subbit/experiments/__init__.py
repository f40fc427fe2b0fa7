"""The paper's tables and figures as specs, a ledger of what was measured, and the report drawn from both.

spec       one TOML file = one table or figure; rows are data
published  the numbers printed in the paper, with their place in it
ledger     one JSON line per finished run
run        runs the (row, seed) pairs that the ledger does not have yet
table      paper and ours side by side, as text cells
figures    Matplotlib drawings      report   Markdown, HTML, and the generated tables of the README
"""
