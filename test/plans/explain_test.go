package plans

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// node is a part of a plan.
type node struct {
	Type      string  `json:"Node Type"`
	Relation  string  `json:"Relation Name"`
	Index     string  `json:"Index Name"`
	Cond      string  `json:"Index Cond"`
	Filter    string  `json:"Filter"`
	Rows      float64 `json:"Actual Rows"` // on average of all loops
	Loops     float64 `json:"Actual Loops"`
	Filtered  float64 `json:"Rows Removed by Filter"`
	Rechecked float64 `json:"Rows Removed by Index Recheck"`
	Hit       float64 `json:"Shared Hit Blocks"` // of all loops together
	Read      float64 `json:"Shared Read Blocks"`
	Removed   int     `json:"Subplans Removed"`
	Plans     []node  `json:"Plans"`

	// Of the whole plan.
	Took     float64 `json:"-"` // ms
	Compiled bool    `json:"-"` // by JIT
}

// read is how many rows a scan took from its table, those that it threw away included.
func (n node) read() float64 { return n.Loops * (n.Rows + n.Filtered + n.Rechecked) }

// String shows a plan as people read one.
func (n node) String() string {
	var b strings.Builder
	n.write(&b, 0)
	return b.String()
}

func (n node) write(b *strings.Builder, depth int) {
	fmt.Fprintf(b, "%s%s", strings.Repeat("  ", depth), n.Type)
	if n.Relation != "" {
		fmt.Fprintf(b, " on %s", n.Relation)
	}
	if n.Index != "" {
		fmt.Fprintf(b, " by %s %s, %.0f rows of %.0f pages read", n.Index, n.Cond, n.read(), n.Hit+n.Read)
	}
	if n.Removed > 0 {
		fmt.Fprintf(b, ", %d removed", n.Removed)
	}
	b.WriteByte('\n')
	for _, p := range n.Plans {
		p.write(b, depth+1)
	}
}

// explain returns the plan of s on conn, as a prepared statement, which is what the programs send. It runs s and rolls back, so that
// the rows are counted; an INSERT is not run, since what it inserts is there.
func explain(ctx context.Context, conn *pgx.Conn, s statement) (n node, err error) {
	if _, err := conn.Exec(ctx, s.begin); err != nil {
		return n, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if _, e := conn.Exec(ctx, "ROLLBACK"); err == nil {
			err = e
		}
	}()
	prepared, err := conn.Prepare(ctx, "explained", s.sql)
	if err != nil {
		return n, fmt.Errorf("prepare: %w", err)
	}
	defer func() {
		if e := conn.Deallocate(ctx, "explained"); err == nil {
			err = e
		}
	}()
	call := "EXECUTE explained"
	if len(s.args) > 0 {
		literals, err := literals(conn.TypeMap(), prepared.ParamOIDs, s.args)
		if err != nil {
			return n, err
		}
		call += "(" + strings.Join(literals, ", ") + ")"
	}
	options := "FORMAT JSON, COSTS OFF"
	if !strings.HasPrefix(strings.TrimSpace(s.sql), "INSERT") {
		options += ", ANALYZE, BUFFERS, TIMING OFF"
	}
	var document string
	if err := conn.QueryRow(ctx, "EXPLAIN ("+options+") "+call, pgx.QueryExecModeSimpleProtocol).Scan(&document); err != nil {
		return n, fmt.Errorf("explain: %w", err)
	}
	var plans []struct {
		Plan node
		Time float64         `json:"Execution Time"`
		JIT  json.RawMessage `json:"JIT"`
	}
	if err := json.Unmarshal([]byte(document), &plans); err != nil || len(plans) != 1 {
		return n, fmt.Errorf("read plan %s: %w", document, err)
	}
	plans[0].Plan.Took, plans[0].Plan.Compiled = plans[0].Time, plans[0].JIT != nil
	return plans[0].Plan, nil
}

// literals writes arguments as SQL: EXPLAIN EXECUTE takes no parameters.
func literals(types *pgtype.Map, oids []uint32, args []any) ([]string, error) {
	all := make([]string, len(args))
	for i, arg := range args {
		text, err := types.Encode(oids[i], pgx.TextFormatCode, arg, nil)
		switch {
		case err != nil:
			return nil, fmt.Errorf("write argument %d: %w", i+1, err)
		case text == nil:
			all[i] = "NULL"
		default:
			all[i] = "'" + strings.ReplaceAll(string(text), "'", "''") + "'"
		}
	}
	return all, nil
}
