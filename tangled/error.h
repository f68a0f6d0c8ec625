#ifndef ERROR_H
#define ERROR_H

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,    /* an argument that the contract refuses */
    STATUS_NO_MEMORY,  /* an allocation failed, or a size overflows */
    STATUS_FORMAT,     /* a file that does not say what it should */
    STATUS_IO          /* the system refused to read or write */
};

enum { ERROR_MESSAGE_MAX = 256 };

/* A message names the argument, what was expected and what came. */
struct error {
    enum status status;
    char message[ERROR_MESSAGE_MAX];
};

#ifdef __GNUC__
#define ERROR_PRINTF(text, first) \
    __attribute__((format(printf, text, first)))
#else
#define ERROR_PRINTF(text, first)
#endif

/* Records status and message (cut to fit) unless error is NULL; returns
   status, so that a refusal is one statement. The arguments must not lie in
   error->message itself. */
enum status error_set(struct error *error, enum status status,
                      const char *format, ...) ERROR_PRINTF(3, 4);

#endif
