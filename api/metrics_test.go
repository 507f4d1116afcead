package api

import (
	"encoding/json"
	"strings"
	"testing"
)

// A metric that is neither a number nor one of three strings is refused, by name.
func TestMetricsRefuseOtherValues(t *testing.T) {
	for _, value := range []string{`"nan"`, `"1"`, `null`, `true`, `[1]`, `{}`} {
		var m Metrics
		if err := json.Unmarshal([]byte(`{"loss":`+value+`}`), &m); err == nil ||
			!strings.Contains(err.Error(), `"loss"`) {
			t.Errorf("%s: %v, error %v", value, m, err)
		}
	}
}
