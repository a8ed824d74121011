package tenantmove

import "slices"

// TablesWithTenant returns the tables that a move knows and that have a column for the tenant.
func TablesWithTenant() []string {
	names := slices.Clone(left)
	for _, t := range moved {
		if t.name != "tenants" && t.name != "credentials" { // found by other columns
			names = append(names, t.name)
		}
	}
	slices.Sort(names)
	return names
}
