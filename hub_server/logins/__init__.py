"""Ways to a token: password, browser challenge, device flow, first administrator.

`service` has the rules, `pages` the page for browsers.
"""
