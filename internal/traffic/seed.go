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

// With so many accounts, payments seldom wait for each other. With so much money, no account
// runs out by chance.
const (
	Accounts = "16"
	funds    = "100000000"
)

// SeedArgs returns the arguments that make oncepay create a client of that name.
func SeedArgs(name string) []string {
	return []string{
		"seed", "--tenant", "demo", "--client", name, "--currency", "USD",
		"--accounts", Accounts, "--fund", funds, "--cards", "--json",
	}
}

// ReadSeed parses the output of oncepay seed.
func ReadSeed(out []byte) (s Seed, err error) {
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("read what oncepay seed printed: %w", err)
	}

	// A payment needs two accounts.
	if s.Token == "" || len(s.Accounts) < 2 {
		return s, errors.New("oncepay seed printed no token or no accounts")
	}
	return s, nil
}
