"""The report of a store as one page of HTML: records to fill, pictures, and the page itself.

`biprop.reports.html.records` says what a page is made of, `biprop.reports.html.render` makes it.
Nothing here reads a store, runs a kernel or needs torch.
"""
