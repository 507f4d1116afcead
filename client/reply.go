package client

import (
	"errors"
	"fmt"

	api "github.com/shoal-ml/shoal/api/worker"
)

// AgentError is a request that the agent refused.
type AgentError struct {
	// Problem is the agent's text: what is wrong, why, and what to do.
	Problem string
	// Field is the field of the request that is wrong; empty if it is not one field.
	Field string
}

// Error returns what the agent says, with the name of this package before it.
func (e *AgentError) Error() string { return "client: the agent refused: " + e.Problem }

// parseReply decodes the agent's reply to a request into a message. A refusal is returned as an
// *AgentError. It keeps nothing of packet, and is called on the goroutine that has made the
// request.
func parseReply(packet []byte, into api.Message) error {
	err := api.ParseReply(packet, into)
	var refusal *api.ErrorReply
	switch {
	case errors.As(err, &refusal):
		return &AgentError{refusal.Problem, refusal.Field}
	case err != nil:
		return fmt.Errorf("client: a reply of the agent is broken: %w", err)
	}
	return nil
}
