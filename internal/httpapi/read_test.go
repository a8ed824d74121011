package httpapi_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

// all reads a list to its end, page by page.
func all[T any](t *testing.T, c caller, path string, params url.Values) (items []T) {
	t.Helper()
	for {
		p := read[page[T]](t, c.get(t, path+"?"+params.Encode()), http.StatusOK)
		if p.Items == nil {
			t.Fatal("items is null")
		}
		items = append(items, p.Items...)
		if p.NextCursor == nil {
			return items
		}
		if len(p.Items) == 0 {
			t.Fatal("an empty page that is not the last")
		}
		params.Set("cursor", *p.NextCursor)
	}
}

func TestListsPageNewestFirst(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	x, y, z := c.funded(t, 1000), c.account(t), c.account(t)
	funding := all[payments.Payment](t, c, "/api/v1/payments", url.Values{})
	if len(funding) != 1 {
		t.Fatalf("%d payments", len(funding))
	}
	var made []payments.Payment
	for i := range 7 {
		from, to := x, y
		if i%3 == 2 {
			from, to = y, x
		} else if i%3 == 1 {
			to = z
		}
		p := c.pay(t, from, to, 1)
		made = append(made, p)
	}
	newest := func(keep func(payments.Payment) bool) (ids []uuid.UUID) {
		for _, p := range append(slices.Clone(funding), made...) {
			if keep(p) {
				ids = append(ids, p.ID)
			}
		}
		slices.SortFunc(ids, func(a, b uuid.UUID) int { return -slices.Compare(a[:], b[:]) })
		return ids
	}
	of := func(account string) func(payments.Payment) bool {
		return func(p payments.Payment) bool {
			return p.SourceAccount.String() == account || p.DestinationAccount.String() == account
		}
	}
	from, to := made[1].ProcessedAt, made[5].ProcessedAt
	between := func(p payments.Payment) bool { return !p.ProcessedAt.Before(from) && p.ProcessedAt.Before(to) }
	for name, k := range map[string]struct {
		params url.Values
		keep   func(payments.Payment) bool
	}{
		"all":            {url.Values{}, func(payments.Payment) bool { return true }},
		"of an account":  {url.Values{"account": {x}}, of(x)},
		"of another":     {url.Values{"account": {z}}, of(z)},
		"in time":        {url.Values{"from": {from.Format(time.RFC3339Nano)}, "to": {to.In(time.FixedZone("", 7200)).Format(time.RFC3339Nano)}}, between},
		"of one in time": {url.Values{"account": {y}, "from": {from.Format(time.RFC3339Nano)}, "to": {to.Format(time.RFC3339Nano)}}, func(p payments.Payment) bool { return of(y)(p) && between(p) }},
		"of no account":  {url.Values{"account": {uuid.NewString()}}, func(payments.Payment) bool { return false }},
		"long ago":       {url.Values{"to": {"1960-01-01T00:00:00Z"}}, func(payments.Payment) bool { return false }},
	} {
		for _, limit := range []int{1, 2, 3, 100} {
			k.params.Set("limit", fmt.Sprint(limit))
			k.params.Del("cursor")
			var got []uuid.UUID
			for _, p := range all[payments.Payment](t, c, "/api/v1/payments", k.params) {
				got = append(got, p.ID)
			}
			if want := newest(k.keep); !slices.Equal(got, want) {
				t.Errorf("%s by %d: got %v, want %v", name, limit, got, want)
			}
		}
	}
	for _, limit := range []string{"1", "2", "100"} {
		entries := all[payments.Entry](t, c, "/api/v1/accounts/"+x+"/entries", url.Values{"limit": {limit}})
		balance := read[payments.Account](t, c.get(t, "/api/v1/accounts/"+x), http.StatusOK).BalanceMinor
		if len(entries) != 8 || entries[0].BalanceAfterMinor != balance {
			t.Fatalf("%d entries, balance %d", len(entries), balance)
		}
		for _, e := range entries {
			if e.BalanceAfterMinor != balance {
				t.Errorf("entry %s: balance %d, want %d", e.ID, e.BalanceAfterMinor, balance)
			}
			balance -= e.AmountMinor
		}
		if balance != 0 {
			t.Errorf("entries do not sum to the balance: %d left", balance)
		}
	}
	if got := c.get(t, "/api/v1/accounts/"+c.account(t)+"/entries"); got.body != `{"items":[],"next_cursor":null}` {
		t.Errorf("no entries: %s", got.body)
	}
	if got := a.newTenant(t).get(t, "/api/v1/payments?account="+x); got.body != `{"items":[],"next_cursor":null}` {
		t.Errorf("another tenant's account: %s", got.body)
	}
}

func TestCursors(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	x, y := c.funded(t, 1000), c.account(t)
	c.pay(t, x, y, 1)
	next := func(path string) string { return *read[page[any]](t, c.get(t, path), http.StatusOK).NextCursor }
	list, entries := "/api/v1/payments?limit=1", "/api/v1/accounts/"+x+"/entries?limit=1"
	payment, entry := next(list), next(entries)

	t.Run("malformed and of another kind of list", func(t *testing.T) {
		for _, bad := range []string{
			"", "x", payment[1:], payment[:len(payment)-1], payment + "a", payment + "%0A", strings.ToUpper(payment),
			strings.ReplaceAll(payment, "-", ""), "urn:uuid:" + payment, uuid.Max.String(), entry,
		} {
			c.get(t, list+"&cursor="+bad).is(t, http.StatusBadRequest, "invalid-cursor")
		}
		for _, bad := range []string{"", "x", entry[1:], "0" + entry, "%2B" + entry, entry + ".0", entry + "%0A", "0", "-1", "9223372036854775808", payment} {
			c.get(t, entries+"&cursor="+bad).is(t, http.StatusBadRequest, "invalid-cursor")
		}
	})

	// A cursor is a position, nothing more: the tenant and the filters are those of the request.
	t.Run("another limit", func(t *testing.T) {
		if got := read[page[any]](t, c.get(t, "/api/v1/payments?limit=100&cursor="+payment), 200); len(got.Items) != 1 {
			t.Errorf("%d payments, want the first one", len(got.Items))
		}
	})
	t.Run("other filters", func(t *testing.T) {
		if got := c.get(t, list+"&account="+y+"&cursor="+payment); got.body != `{"items":[],"next_cursor":null}` {
			t.Errorf("payments of an account that has none before the cursor: %s", got.body)
		}
		if got := c.get(t, list+"&to=1960-01-01T00:00:00Z&cursor="+payment); got.body != `{"items":[],"next_cursor":null}` {
			t.Errorf("a cursor after the end of the time filter: %s", got.body)
		}
		if got := read[page[any]](t, c.get(t, "/api/v1/accounts/"+y+"/entries?cursor="+entry), 200); len(got.Items) != 1 {
			t.Errorf("%d entries of another account, want the one below the cursor's number", len(got.Items))
		}
	})
	t.Run("another tenant", func(t *testing.T) {
		stranger := a.newTenant(t)
		if got := stranger.get(t, list+"&cursor="+payment); got.body != `{"items":[],"next_cursor":null}` {
			t.Errorf("a stranger sees %s", got.body)
		}
		stranger.get(t, entries+"&cursor="+entry).is(t, http.StatusNotFound, "not-found")
	})
}

func TestQueryParametersAreStrict(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	account := c.account(t)
	for _, query := range []string{
		"limit=0", "limit=101", "limit=-1", "limit=1.0", "limit=+1", "limit=", "limit=x", "limit=1&limit=2", "Limit=1", "sort=amount", "offset=1",
		"account=x", "account=", "account=" + strings.ToUpper("a"+account[1:]), "account=%27%20OR%201=1--",
		"from=yesterday", "from=2026-01-01", "from=2026-01-01T00:00:00", "to=2026-13-01T00:00:00Z", "to=2026-01-01T00:00:00+02:00", "from=1767225600",
		"limit=1;account=x", "%zz=1", "x",
	} {
		p := c.get(t, "/api/v1/payments?"+query).is(t, http.StatusBadRequest, "invalid-query")
		if strings.Contains(query, "limit=0") && (len(p.Errors) != 1 || p.Errors[0].Parameter != "limit") {
			t.Errorf("%+v", p)
		}
	}
	if p := c.get(t, "/api/v1/payments?limit=0&from=x&to=y").is(t, 400, "invalid-query"); len(p.Errors) != 3 {
		t.Errorf("told one by one: %+v", p)
	}
	for _, path := range []string{"", "/entries"} {
		c.get(t, "/api/v1/accounts/"+account+path+"?x=1").is(t, http.StatusBadRequest, "invalid-query")
	}
}
