package traffic

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Seed is a client with accounts, as oncepay seed prints it.
type Seed struct {
	ClientID uuid.UUID `json:"client_id"`
	Token    string    `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// Enough accounts that payments seldom wait for each other, and enough money that none runs out
// by chance.
const (
	Accounts = "16"
	funds    = "100000000"
)

// SeedArgs are the arguments with which oncepay makes a client of that name.
func SeedArgs(name string) []string {
	return []string{
		"seed", "-tenant", "demo", "-client", name, "-currency", "USD",
		"-accounts", Accounts, "-fund", funds, "-json",
	}
}

// ReadSeed reads what oncepay printed.
func ReadSeed(out []byte) (s Seed, err error) {
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("read what oncepay seed printed: %w", err)
	}
	if s.Token == "" || len(s.Accounts) < 2 {
		return s, errors.New("oncepay seed printed no token or no accounts")
	}
	return s, nil
}
