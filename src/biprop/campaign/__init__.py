"""Campaigns: hours of searches over all cells, on one store that nothing is lost from.

Nothing is imported here. `biprop.campaign.records` says what lies in a store and
`biprop.campaign.store` writes and reads it; `biprop.campaign.run` is what `biprop fuzz` starts.
"""
