package head

// Message is what agents send to each other. Append and Parse have its bytes.
type Message interface{ message() }
