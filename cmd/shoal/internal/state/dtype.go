package state

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// castRules reads --dtype. It fails for rules that are wrong whatever the checkpoint is. This file
// is about that flag; the goroutine of the command runs it.
func (m *moveFlags) castRules() (rules []checkpoint.Cast, err error) {
	if len(m.dtypes) > 0 && checkpoint.NeedsGroups(m.format) {
		return nil, cli.Usagef("--dtype is for hf, pt, dcp, shards and ranks; the model of %s "+
			"follows from what its optimizer has in f32", m.format)
	}
	for _, text := range m.dtypes {
		rule := checkpoint.Cast{Text: text}
		name := text
		if i := strings.LastIndexByte(text, '='); i >= 0 {
			pattern := text[:i]
			name = text[i+1:]
			if strings.HasSuffix(pattern, ".") || strings.HasSuffix(pattern, "/") {
				pattern += "**"
			}
			if rule.Match, err = layout.NewMatcher(pattern); err != nil {
				return nil, cli.AsUsage(fmt.Errorf("--dtype: %w", err))
			}
		}
		if rule.To, err = castDType(name); err != nil {
			return nil, cli.Usagef("--dtype %s: %v", text, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// castDType returns the element type of a name, which can be that of torch. It is pure; the error
// says which types there are.
func castDType(name string) (tensor.DType, error) {
	short := map[string]string{"bfloat16": "bf16", "float16": "f16", "half": "f16",
		"float32": "f32", "float": "f32"}[strings.TrimPrefix(name, "torch.")]
	var known []string
	for _, d := range checkpoint.CastDTypes() {
		if d.String() == name || d.String() == short {
			return d, nil
		}
		known = append(known, d.String())
	}
	return 0, fmt.Errorf("%q is no type to which floats are rounded; these are %s", name,
		strings.Join(known, ", "))
}

// cast rounds tensors as --dtype says. It changes c, and sets m.rounded.
func (m *moveFlags) cast(c *checkpoint.Checkpoint) (err error) {
	if len(m.casts) > 0 {
		m.rounded, err = c.Cast(m.casts)
	}
	return err
}
