package api

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMetricsRefuseOtherValues(t *testing.T) {
	for _, value := range []string{`"nan"`, `"1"`, `null`, `true`, `[1]`, `{}`} {
		var m Metrics
		if err := json.Unmarshal([]byte(`{"loss":`+value+`}`), &m); err == nil ||
			!strings.Contains(err.Error(), `"loss"`) {
			t.Errorf("%s: %v, error %v", value, m, err)
		}
	}
}
