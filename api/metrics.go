// Package api has what both protocols of shoal carry: api/worker, between a worker and its agent,
// and api/control, between the commands that people use and a launcher.
package api

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Metrics are the numbers of a report, by name. JSON has no NaN and no infinities, and a loss that
// has become one is the report that matters most, so these are written as the strings "NaN", "+Inf"
// and "-Inf".
type Metrics map[string]float64

// MarshalJSON implements json.Marshaler: it returns an object of numbers, with strings for what is
// not finite, and changes nothing.
func (m Metrics) MarshalJSON() ([]byte, error) {
	values := make(map[string]any, len(m))
	for name, v := range m {
		values[name] = v
		if math.IsNaN(v) || math.IsInf(v, 0) {
			values[name] = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	return json.Marshal(values)
}

// UnmarshalJSON replaces m by what MarshalJSON wrote; any other value is an error that names the
// metric.
func (m *Metrics) UnmarshalJSON(text []byte) error {
	var values map[string]any
	if err := json.Unmarshal(text, &values); err != nil {
		return err
	}
	*m = make(Metrics, len(values))
	for name, v := range values {
		switch v {
		case "NaN":
			v = math.NaN()
		case "+Inf":
			v = math.Inf(1)
		case "-Inf":
			v = math.Inf(-1)
		}
		number, ok := v.(float64)
		if !ok {
			return fmt.Errorf(`metric %q: %v is neither a number nor "NaN", "+Inf" or "-Inf"`, name,
				v)
		}
		(*m)[name] = number
	}
	return nil
}
