package main

import (
	"fmt"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/format/optim"
)

// adopt prepares the optimizer for the format, with the groups that were given.
func (m *moveFlags) adopt(c *checkpoint.Checkpoint) (notes []string, err error) {
	var given []optim.Group
	if m.groups != "" {
		text, err := durable.Read(m.groups, optim.MaxGroupsBytes)
		if err != nil {
			return nil, err
		}
		if given, err = optim.Parse(text); err != nil {
			return nil, fmt.Errorf("%s: %w", m.groups, err)
		}
	}
	return c.Adopt(m.format, given)
}
