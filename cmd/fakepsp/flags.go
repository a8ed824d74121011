package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/program"
)

// flags are what the command line and the environment say.
type flags struct {
	set     *pflag.FlagSet
	addr    string
	dir     string
	options fakepsp.Options
}

func (f *flags) add(c *cobra.Command) {
	f.set = c.Flags()
	faults := &f.options.Faults

	f.set.StringVar(&f.addr, "addr", "127.0.0.1:8090", "listen here")
	f.set.StringVar(&f.dir, "dir", "", "keep the books in this directory (required)")
	f.set.StringVar(&f.options.WebhookURL, "webhook-url", "", "send webhooks there")
	f.set.Uint64Var(&f.options.Seed, "seed", 0,
		"the same seed and order of calls draws the same faults")

	f.set.StringVar(&faults.Down, "down", "",
		"fail all calls: unavailable answers 503, reset closes connections")
	duration(c, &faults.Latency, "latency", "of every call, before it is executed")
	share(c, &faults.Slow, "slow", "of calls that take --slow-for longer, before or after executing")
	duration(c, &faults.SlowFor, "slow-for", "how much longer slow calls take (default 30s)")
	share(c, &faults.LoseReply, "lose-reply", "of calls executed, but closed without an answer")
	share(c, &faults.ErrorBefore, "error-before", "of calls answered 500 and not executed")
	share(c, &faults.ErrorAfter, "error-after", "of calls executed, but answered 500")
	share(c, &faults.Decline, "decline", "of charges that are declined")
	f.set.Int64Var(&faults.DeclineAbove, "decline-above", 0,
		"decline charges of a larger amount; 0: none")
	f.set.IntVar(&faults.RateLimit, "rate-limit", 0,
		"answer 429 to more POSTs than this in a second; 0: never")
	duration(c, &faults.ForgetKeysAfter, "forget-keys-after", "forget keys that are older; 0: never")

	duration(c, &faults.WebhookDelay, "webhook-delay", "send webhooks so much later")
	share(c, &faults.WebhookDouble, "webhook-double",
		"of charges and refunds whose webhooks come twice")
	share(c, &faults.WebhookShuffle, "webhook-shuffle",
		"of charges and refunds whose webhooks come in any order")
}

// share adds a flag from 0 to 1.
func share(c *cobra.Command, v *float64, name, usage string) {
	program.Flag(c, v, name, "SHARE", "share "+usage, func(s string) (float64, error) {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x >= 0 && x <= 1) {
			return 0, errors.New("must be a share from 0 to 1")
		}
		return x, nil
	})
}

func duration(c *cobra.Command, v *fakepsp.Duration, name, usage string) {
	program.Flag(c, v, name, "DURATION", usage, func(s string) (fakepsp.Duration, error) {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return 0, errors.New("must be a duration such as 1.5s")
		}
		return fakepsp.Duration(d), nil
	})
}

// read completes the flags with the environment, and reports all that is wrong.
func (f *flags) read(getenv func(string) string) error {
	wrong := []error{f.fromEnv(getenv)}

	f.options.APIKey = getenv("PSP_API_KEY")
	f.options.WebhookSecret = getenv("PSP_WEBHOOK_SECRET")
	if f.options.APIKey == "" {
		wrong = append(wrong, errors.New("PSP_API_KEY is not set, for example PSP_API_KEY=psp_secret"))
	}
	if f.dir == "" {
		wrong = append(wrong, errors.New("--dir is not set, for example --dir /tmp/fakepsp"))
	}
	if f.options.WebhookURL != "" && f.options.WebhookSecret == "" {
		wrong = append(wrong, errors.New("PSP_WEBHOOK_SECRET is not set, but --webhook-url is"))
	}
	return errors.Join(wrong...)
}

// fromEnv sets the flags that the command line does not have from the environment.
func (f *flags) fromEnv(getenv func(string) string) error {
	var wrong []error
	f.set.VisitAll(func(flag *pflag.Flag) {
		name := "FAKEPSP_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := getenv(name)
		if value == "" || flag.Changed || flag.Name == "help" {
			return
		}
		err := flag.Value.Set(value)
		if errors.Is(err, strconv.ErrSyntax) || errors.Is(err, strconv.ErrRange) {
			err = errors.New("must be a whole number")
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s=%s: %w", name, value, err))
		}
	})
	return errors.Join(wrong...)
}
