"""Power: which planted defects a search finds, how soon, and whether healthy kernels stay quiet.

What `biprop power` runs. Planted kernels and their twins come from `biprop.kernels.planted` or from
a manifest (`manifest`); `benches` makes them ready to be judged, `methods` draws the cases of each
method, `trials` seeks and shrinks, `smallest` knows the smallest failing structures, and `run`
spreads trials over processes (`pool`, `working`). Reports are those of `biprop.reports.power`.
"""
