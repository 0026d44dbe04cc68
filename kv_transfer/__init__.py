"""KV blocks on their way from P to D: leases, layout, links, sender and receiver."""
