package testenv

import (
	"crypto/rand"
	"strings"
	"testing"
)

// Brokers returns the addresses of the broker that all tests share. Use TopicPrefix for topics,
// consumer groups and transactional ids.
func Brokers(t testing.TB) []string {
	t.Helper()
	return strings.Split(use(t, processBroker).Address, ",")
}

// TopicPrefix returns a prefix that no other test has, such as "t8f3a2c4q.".
func TopicPrefix(t testing.TB) string {
	t.Helper()
	return "t" + strings.ToLower(rand.Text()[:12]) + "."
}
