package main

import (
	"errors"
	"strconv"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
)

// target is the payment that capture, cancel or refund is about.
type target struct {
	id        uuid.UUID
	ifVersion int64 // zero: any
}

func (t *target) flags(c *cobra.Command) {
	program.Argument(c, &t.id, parseID)
	program.Flag(c, &t.ifVersion, "if-version", "N",
		"refuse unless the payment has this version, as get shows it", parseVersion)
}

func parseVersion(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, errors.New("it must be a version, such as 1")
	}
	return n, nil
}

// change is a request about the payment: below is the last part of its path.
func (t target) change(below string, body any) change {
	path := "/api/v1/payments/" + t.id.String() + "/" + below
	return change{path: path, ifVersion: t.ifVersion, body: body}
}
