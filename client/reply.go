package client

import (
	"encoding/json"
	"fmt"

	"github.com/shoal-ml/shoal/api"
)

// AgentError is a request that the agent refused.
type AgentError struct {
	Problem string
	Field   string // the field of the request that is wrong, if one is
}

func (e *AgentError) Error() string { return "client: the agent refused: " + e.Problem }

func parseReply(b []byte) (*api.Reply, error) {
	var r api.Reply
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("client: an answer of the agent is broken: %w", err)
	}
	if r.Type == api.TypeError {
		return nil, &AgentError{r.Error, r.Field}
	}
	return &r, nil
}
