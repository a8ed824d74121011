package local

import (
	"path/filepath"
	"strconv"
	"strings"
)

// webhooksAllow lets webhooks go to the demo's own receiver.
const webhooksAllow = "WEBHOOKS_ALLOW=127.0.0.0/8"

// environment configures a program.
func (s *Service) environment(kind string) []string {
	switch kind {
	case "fakepsp":
		return []string{
			"PSP_API_KEY=" + PSPKey, "PSP_WEBHOOK_SECRET=" + pspSecret, "FAKEPSP_ADDR=" + s.provider,
			"FAKEPSP_DIR=" + filepath.Join(s.Dir, "psp"),
			"FAKEPSP_WEBHOOK_URL=" + s.URL() + "/webhooks/psp",
		}
	case "api":
		write := s.as("api_write")
		if s.proxy != nil {
			write = s.proxy.URL(write)
		}
		return []string{
			"DATABASE_URL=" + write, "DATABASE_READ_URL=" + s.as("api_read"),
			"HTTP_ADDR=" + s.address, "AUTHORIZATION_MIN=1s", "PSP_WEBHOOK_SECRET=" + pspSecret,
			webhooksAllow,
		}
	}
	return []string{
		"DATABASE_URL=" + s.as(kind), "KAFKA_BROKERS=" + strings.Join(s.Brokers(), ","),
		"RELAY_BATCH=" + strconv.Itoa(Batch), "PSP_URL=" + s.PSP(), "PSP_API_KEY=" + PSPKey,
		webhooksAllow, "TOPIC_MIN_INSYNC=1", // one broker, one copy
	}
}
