package structure

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// ranBy names the test that runs a command of a document. What is not in it is recognised by
// runner.
var ranBy = map[string]string{
	"for p in idempotency outbox relay relay/kafka; do mkdir -p ../shop/internal/$p":  copied,
	"cp $(ls internal/$p/*.go | grep -v _test.go) LICENSE ../shop/internal/$p/; done": copied,
	"cp examples/minimal/main.go examples/minimal/orders.sql go.mod go.sum ../shop/":  copied,
	"cp migrations/00002_idempotency.sql migrations/00003_outbox.sql ../shop/":        copied,
	"cd ../shop": copied,
	"sed -i.bak s,github.com/oncepay/oncepay,example.com/shop, go.mod main.go internal/*/*/*.go": copied,
	"for m in *.sql; do sed '/^-- +goose Down/,$d' $m | psql $DATABASE_URL; done":                copied,
	"go mod tidy && go run .": copied,
	"curl -d item=book -H 'Idempotency-Key: order-1' http://$HTTP_ADDR/orders":                                                                          "examples/minimal/main_test.go:TestMinimal",
	"git -C ../oncepay diff COMMIT main -- internal/idempotency ':!*_test.go' | git apply --reject":                                                     "test/structure/copyout_test.go:TestREADMEFollowsFixes",
	"export ONCEPAY_TOKEN=oncepay_…":                                                                                                                    programs,
	"DATABASE_URL=postgres://relay:…@10.0.0.6:6432/oncepay?default_query_exec_mode=cache_describe":                                                      "test/e2e/pooler_test.go:TestPgBouncerPaymentReachesStatementsOnce",
	`DATABASE_URL=postgres://relay@new/oncepay relay adopt --from postgres://relay@old/oncepay`:                                                         moved,
	`pg_dumpall --roles-only -d "$OLD" | grep -vE ' ROLE postgres( |;)' | psql "$NEW"`:                                                                  moved,
	`pg_dump --data-only -t outbox_cursors "$OLD" | psql -v ON_ERROR_STOP=1 "$NEW"`:                                                                     moved,
	`psql "$NEW" -c "SELECT inbox_events_make_partitions(ARRAY(SELECT (now() AT TIME ZONE 'utc')::date + i FROM generate_series(0, 1) i))"`:             moved,
	`pg_dump --schema-only --no-publications "$OLD" | psql -v ON_ERROR_STOP=1 "$NEW"`:                                                                   moved,
	`psql "$NEW" -c "CREATE SUBSCRIPTION move CONNECTION '$OLD' PUBLICATION move, move_outbox"`:                                                         moved,
	`psql "$NEW" -Atc "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"`:                                                                     moved,
	`psql "$OLD" -Atc "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = 'move'"`:                          moved,
	"DATABASE_READ_URL=postgres://api_read:…@standby,primary/oncepay?target_session_attrs=prefer-standby":                                               "cmd/api/pools_test.go:TestStandbyForReadsIsSaidToBeOne",
	`psql "$OLD" -c 'ALTER DATABASE oncepay SET default_transaction_read_only = on'`:                                                                    moved,
	`psql "$NEW" -c 'DROP SUBSCRIPTION move'`:                                                                                                           moved,
	`psql "$OLD" -Atc "SELECT format('SELECT setval(%L, %s);', sequencename, last_value) FROM pg_sequences WHERE last_value IS NOT NULL" | psql "$NEW"`: moved,
}

const (
	moved    = "test/ops/move_test.go:TestMoveByReplication"
	copied   = "test/structure/copyout_test.go:TestREADMECopyCommands"
	programs = "test/e2e/commands_test.go:TestDocumentedPrograms"
	login    = "test/e2e/login_test.go:TestLogInToKafka" // all of its section
	inBase   = "test/structure/commands_test.go:TestDocumentedSQL"
	life     = "test/e2e/life_test.go:TestDocumentedLife"
	copies   = "cmd/relay/copies_test.go:TestDocumentedCommandsRaiseTheCopies"
	backup   = "test/ops/backup_test.go:TestBackup"
)

// figures begin the blocks that are no commands.
var figures = []string{"HTTP ─ authenticate", "POST /payments {payment_method}", "[databases]", "[pgbouncer]", "stateDiagram"}

var (
	inline    = regexp.MustCompile("`([^`\n]+)`")
	isCommand = regexp.MustCompile(`^(make|go|git|docker|psql|curl|cp|sed|kafka-[a-z-]+\.sh) `)
	isSQL     = regexp.MustCompile(`^(SELECT|WITH|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|GRANT|DO|ROLLBACK) [^…]`)
	isLife    = regexp.MustCompile(`^api=\S+/api/v1\n`)
	isBackup  = regexp.MustCompile(`^(pg_basebackup|pg_verifybackup|pg_archivecleanup|archive_[a-z]+|restore_command|recovery_target_[a-z]+) `)
	isOurs    = regexp.MustCompile(`^(oncepay|relay|consumer|worker|migrate) [a-z]`)
	remark    = regexp.MustCompile(`(^|\s+)# .*$`)
	number    = regexp.MustCompile(`[0-9]+`)
)

// TestEveryDocumentedCommandIsRun: what README and docs tell a reader to type is run by a test or in
// CI. A new command is found here until it has its runner.
func TestEveryDocumentedCommandIsRun(t *testing.T) {
	t.Parallel()
	stale := maps.Clone(ranBy)
	for _, file := range []string{"README.md", "docs/*.md", "docs/decisions/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, file))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for _, file := range files {
			for _, command := range documented(read(t, file)) {
				delete(stale, command)
				if !hasRunner(t, command) {
					t.Errorf("%s: neither a test nor CI runs %q", filepath.Base(file), command)
				}
			}
		}
	}
	for command := range stale {
		t.Errorf("no document has the command %q of the list", command)
	}
}

func TestAnUnlistedCommandIsFound(t *testing.T) {
	t.Parallel()
	for text, found := range map[string]bool{
		"Text.\n\n    make test\n    oncepay outbox   # a remark\n":   false,
		"Text: `make test`, `SELECT 1` and `relay dead-letters list`": false,
		"1. Text.\n\n       SELECT 1\n       FROM x;\n":               false,
		"`UPDATE … SET x` and `SELECT`":                               false,
		"Text.\n\n    rm -rf bin\n":                                   true,
		"1. Text.\n\n       make test && reboot\n":                    true,
		"```\nmake nonsense\n```\n":                                   true,
		"`go vet ./...`":                                              true,
		"`kafka-topics.sh --delete`":                                  true,
	} {
		unlisted := slices.ContainsFunc(documented(text), func(c string) bool { return !hasRunner(t, c) })
		if unlisted != found {
			t.Errorf("%q: %q, found %t", text, documented(text), unlisted)
		}
	}
}

// hasRunner reports whether something that exists runs a command.
func hasRunner(t *testing.T, command string) bool {
	t.Helper()
	kafka := strings.HasPrefix(command, "kafka-acls.sh ") || strings.HasPrefix(command, "kafka-topics.sh ") && strings.Contains(command, "--create")
	test := ranBy[command]
	switch {
	case isSQL.MatchString(command):
		test = inBase
	case isLife.MatchString(command):
		test = life
	case isBackup.MatchString(command):
		test = backup
	case isOurs.MatchString(command):
		test = programs
	case kafka:
		test = login
	case strings.HasPrefix(command, "kafka-configs.sh "):
		test = copies
	}
	if file, name, found := strings.Cut(test, ":"); found {
		return isTestIn(name, filepath.Join(root, file))
	}
	if ranByCompose(t, command) {
		return true
	}

	// In CI, perhaps with other numbers. A target is run with each that has it as a prerequisite.
	ci := read(t, filepath.Join(root, ".ci/run")) + read(t, filepath.Join(root, ".github/workflows/ci.yml")) +
		read(t, filepath.Join(root, ".github/workflows/weekly.yml"))
	if target, is := strings.CutPrefix(command, "make "); is {
		makefile := read(t, filepath.Join(root, "Makefile"))
		for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.* `+regexp.QuoteMeta(target)+`( |$)`).FindAllStringSubmatch(makefile, -1) {
			if hasLine(ci, "make "+m[1]) {
				return true
			}
		}
	}
	return hasLine(ci, command)
}

// hasLine reports whether a line of CI ends with a command.
func hasLine(ci, command string) bool {
	command = number.ReplaceAllString(command, "N")
	for line := range strings.Lines(number.ReplaceAllString(ci, "N")) {
		if line = strings.TrimSpace(line); strings.HasSuffix(" "+line, " "+command) {
			return true
		}
	}
	return false
}

// ranByCompose reports whether test/compose.sh takes the command out of its document and runs it.
func ranByCompose(t *testing.T, command string) bool {
	t.Helper()
	taken := regexp.MustCompile(`\$\(documented '([^']+)'\)`)
	for _, m := range taken.FindAllStringSubmatch(read(t, filepath.Join(root, "test/compose.sh")), -1) {
		if strings.HasPrefix(command, m[1]) {
			return true
		}
	}
	return false
}

// TestDocumentedSQL executes every statement of the runbook, in transactions that are rolled back.
func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	pool := db.Pool(t, "")
	n := 0
	for _, command := range documented(read(t, filepath.Join(root, "docs/operating.md"))) {
		if !isSQL.MatchString(command) {
			continue
		}
		n++
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		begin, end := "BEGIN", "ROLLBACK"
		// The roles are there already, and are the whole server's.
		statement := regexp.MustCompile(`(CREATE ROLE \w+)`).ReplaceAllString(command, "${1}_of_"+db.Name)
		statement = strings.NewReplacer("PID", "0",
			"EVENT_ID", "0198a6de-0000-7000-8000-000000000000", "ACCOUNT_ID", "0198a6de-0000-7000-8000-000000000001",
			"TENANT_ID", "0198a6de-0000-7000-8000-000000000002", "PAYMENT_ID", "0198a6de-0000-7000-8000-000000000003",
			"EVENT_DAY", time.Now().UTC().Format(time.DateOnly), "GID", db.Name).Replace(statement)
		if strings.HasPrefix(command, "ROLLBACK PREPARED") {
			begin, end = "BEGIN; DELETE FROM outbox_cursors; PREPARE TRANSACTION '"+db.Name+"'", ""
		}
		for _, s := range []string{begin, statement, end} {
			if _, err := conn.Exec(t.Context(), s); err != nil {
				t.Errorf("%s\n%v", command, err)
			}
		}
		conn.Release()
	}
	if n < 15 {
		t.Errorf("docs/operating.md has %d statements", n)
	}
}

// documented returns the commands of a document, each on one line and without its remark, or a
// paragraph of SQL or of the life of a payment.
func documented(text string) (all []string) {
	for _, block := range commands(text) {
		text = strings.ReplaceAll(text, "\n"+block+"\n", "\n")
		for paragraph := range strings.SplitSeq(block, "\n\n") {
			switch {
			case slices.ContainsFunc(figures, func(f string) bool { return strings.HasPrefix(paragraph, f) }):
			case isSQL.MatchString(paragraph), isLife.MatchString(paragraph):
				all = append(all, paragraph)
			default:
				for line := range strings.SplitSeq(strings.ReplaceAll(paragraph, "\\\n", ""), "\n") {
					line = strings.Join(strings.Fields(remark.ReplaceAllString(line, "")), " ")
					if line != "" {
						all = append(all, line)
					}
				}
			}
		}
	}
	for _, span := range inline.FindAllStringSubmatch(text, -1) {
		if s := span[1]; isCommand.MatchString(s) || isSQL.MatchString(s) || isOurs.MatchString(s) {
			all = append(all, s)
		}
	}
	return all
}

// commands returns the code blocks of a Markdown text: fenced, or indented by four columns or more
// behind an empty line.
func commands(text string) (blocks []string) {
	var block strings.Builder
	before, fence, margin := "", false, 0
	flush := func() {
		if block.Len() > 0 {
			blocks = append(blocks, strings.TrimRight(block.String(), "\n"))
		}
		block.Reset()
	}
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		spaces := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fence = !fence
			flush()
		case fence:
			block.WriteString(line + "\n")
		case block.Len() == 0 && before == "" && spaces >= 4:
			margin = spaces
			block.WriteString(line[margin:] + "\n")
		case block.Len() > 0 && (line == "" || spaces >= margin):
			block.WriteString(line[min(margin, len(line)):] + "\n")
		default:
			flush()
		}
		before = line
	}
	flush()
	return blocks
}
